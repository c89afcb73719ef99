#!/usr/bin/env bash
# Sets the keys of the files in DIR (configs/pulsar/business or ops) in a Pulsar distribution's folder conf: apply.sh DIR CONF-DIR
# A key that CONF-DIR's file has, once or more, is replaced: BookKeeper takes a key that is there twice for a list. Others are appended. jvm.env is copied, and
# pulsar_env.sh and bkenv.sh read it first. The settings of a machine are none of these keys, so that a second run, with newer files, keeps them.
set -euo pipefail

[[ $# == 2 && -d "$1" && -d "$2" ]] || { echo "usage: $0 DIR CONF-DIR" >&2; exit 2; }

# Nothing is changed if a file is missing.
changed=()
for file in broker.conf bookkeeper.conf; do [[ ! -e "$1/$file" ]] || changed+=("$file"); done
[[ ! -e "$1/jvm.env" ]] || changed+=(pulsar_env.sh bkenv.sh)
for file in "${changed[@]}"; do [[ -f "$2/$file" ]] || { echo "$0: $2 has no $file" >&2; exit 1; }; done

# shellcheck disable=SC2016 # for the files to expand
line='. "${BASH_SOURCE[0]%/*}/jvm.env"'
for file in "${changed[@]}"; do
  case "$file" in
    *.conf)
      merged=$(awk '
        /^[[:space:]]*(#|$)/ { if (FILENAME != ARGV[1]) print; next }
        { key = $0; sub(/[[:space:]]*=.*/, "", key); sub(/^[[:space:]]*/, "", key) }
        FILENAME == ARGV[1] { if (!(key in wanted)) order[++keys] = key; wanted[key] = $0; next }
        !(key in wanted) { print; next }
        !(key in done) { done[key] = 1; print wanted[key] }
        END { for (i = 1; i <= keys; i++) if (!(order[i] in done)) print wanted[order[i]] }' "$1/$file" "$2/$file")
      printf '%s\n' "$merged" >"$2/$file"
      ;;
    *) grep -qxF "$line" "$2/$file" || sed -i --follow-symlinks "1a $line" "$2/$file" ;;
  esac
done
[[ ! -e "$1/jvm.env" ]] || cp "$1/jvm.env" "$2/jvm.env"
