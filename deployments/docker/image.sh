#!/usr/bin/env bash
# Builds the images aviary/<service>:<version>. `make image` calls it.
#
#   TOOL      docker, podman or buildah. Default: the first of them that works
#   BUILD     prebuilt (default): binaries of the Go of this machine; compile: in the image golang
#   PLATFORM  linux/amd64 or linux/arm64. Default: that of this machine
#   SERVICES  default: all four
#   CA_FILE   the certificates of authorities, for prebuilt. Default: where systems have them
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${VERSION:?call it by make image}" "${COMMIT:?call it by make image}"
BUILD="${BUILD:-prebuilt}"
read -ra services <<<"${SERVICES:-nightingale pigeonhole sonic eventbridge}"

die() {
  echo "image: $*" >&2
  exit 1
}

works() {
  command -v "$1" >/dev/null || return 1
  case "$1" in
    buildah) buildah --version ;;
    *) "$1" info ;; # docker without its daemon is no use
  esac >/dev/null 2>&1
}

if [[ -z "${TOOL:-}" ]]; then
  for TOOL in docker podman buildah ''; do
    if [[ -n "$TOOL" ]] && works "$TOOL"; then
      break
    fi
  done
fi
case "$TOOL" in
  docker) build=(env DOCKER_BUILDKIT=1 docker build) ;;
  podman) build=(podman build) ;;
  buildah) build=(buildah bud) ;;
  '') die "none of docker, podman and buildah works here: docker info and podman info say why" ;;
  *) die "TOOL is docker, podman or buildah, got $TOOL" ;;
esac

tag="${VERSION//[^A-Za-z0-9_.-]/-}" # what a tag may be made of
PLATFORM="${PLATFORM:-linux/$(go env GOARCH)}"
[[ "$PLATFORM" =~ ^linux/[a-z0-9]+$ ]] || die "PLATFORM is one, such as linux/arm64, got $PLATFORM"

context=.
case "$BUILD" in
  compile) ;;
  prebuilt)
    context="$(mktemp -d)"
    trap 'rm -rf "$context"' EXIT
    GOOS=linux GOARCH="${PLATFORM#linux/}" make build BIN="$context/bin" VERSION="$VERSION" COMMIT="$COMMIT"
    for file in "${CA_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem; do
      if [[ -n "$file" && -s "$file" ]]; then
        cp -L "$file" "$context/ca-certificates.crt"
        break
      fi
    done
    [[ -s "$context/ca-certificates.crt" ]] || die "no certificates of authorities here: install ca-certificates, or name a file by CA_FILE"
    ;;
  *) die "BUILD is prebuilt or compile, got $BUILD" ;;
esac

for service in "${services[@]}"; do
  "${build[@]}" --platform "$PLATFORM" -f deployments/docker/Dockerfile -t "aviary/$service:$tag" \
    --build-arg SERVICE="$service" --build-arg BUILD="$BUILD" --build-arg VERSION="$VERSION" --build-arg COMMIT="$COMMIT" \
    "$context"
done
echo "image: ${services[*]/%/:$tag}" >&2
