#!/usr/bin/env bash
# Makes the archives of a release in dist/: one for each platform, an SBOM (CycloneDX) for each binary, and checksums. It publishes nothing.
# `make release VERSION=0.1.0` calls it. The same commit, version and Go make the same bytes.
#
#   VERSION    what -version prints
#   COMMIT     the commit, in full
#   DIST       the folder of the result, which is made anew. Default: dist
#   PLATFORMS  default: linux/amd64 linux/arm64 darwin/arm64
set -euo pipefail
cd "$(dirname "$0")/../.."

: "${COMMIT:?call it by make release}"
if [[ ! "${VERSION:-}" =~ ^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.]+)?$ ]]; then
  echo "release: VERSION is a version such as 0.1.0, got '${VERSION:-}'" >&2
  exit 1
fi
DIST="${DIST:-dist}"
sbom=(go run "github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@${CYCLONEDX_VERSION:?call it by make release}")

rm -rf "$DIST"
mkdir -p "$DIST"
# Each file of an archive has the time of the commit.
time=$(git show -s --format=@%ct "$COMMIT")
for platform in ${PLATFORMS:-linux/amd64 linux/arm64 darwin/arm64}; do
  name="aviary-$VERSION-${platform/\//-}"
  mkdir -p "$DIST/$name/bin" "$DIST/$name/sbom"
  GOFLAGS="${GOFLAGS:-} -buildvcs=false" GOOS="${platform%/*}" GOARCH="${platform#*/}" make build BIN="$DIST/$name/bin" VERSION="$VERSION" COMMIT="$COMMIT"
  cp -r README.md CHANGELOG.md LICENSE SECURITY.md configs "$DIST/$name/"
  for binary in "$DIST/$name"/bin/*; do
    "${sbom[@]}" bin -json -noserial -notimestamp -std -version "v$VERSION" -output "$DIST/$name/sbom/$(basename "$binary").json" "$binary"
  done
  tar --create --directory "$DIST" --sort name --mtime "$time" --owner 0 --group 0 --numeric-owner --mode 'u+w,go-w,a+rX' "$name" |
    gzip --no-name >"$DIST/$name.tar.gz"
  rm -r "${DIST:?}/$name"
done
(cd "$DIST" && sha256sum -- *.tar.gz >SHA256SUMS)
cat "$DIST/SHA256SUMS"
