#!/usr/bin/env bash
# Says whether a disk is fit for a bookie: check.sh [-j | -l] business|ops DIR, where DIR is a folder on the disk. It needs fio and jq, free space of seven
# times SIZE, and about a minute. -j judges the disk for a journal, -l for ledgers, neither for both on one disk; journal-64k+ is the journal while ledgers are
# written and read. Status 0: fit, 1: not fit, 2: it could not be run.
#
# Variables: SIZE (1g, of each file), RUNTIME (10s, of each job), and the limits SYNC_P99_MS, SYNC_P999_MS, JOURNAL_MBS, WRITE_MBS, READ_P99_MS.
set -euo pipefail

use=both
case "${1:-}" in -j) use=journal; shift ;; -l) use=ledgers; shift ;; esac
case "${1:-}" in
  # A publish waits for a sync on two of three bookies. 5 ms was the worst write on a journal's own SSD in the system that Aviary follows.
  business) limits=(2 5 100 100 20) ;;
  # No publish waits for a sync: only how much goes through matters.
  ops) limits=(1000 5000 100 100 50) ;;
  *) limits=() ;;
esac
[[ $# == 2 && ${#limits[@]} != 0 && -d "$2" ]] || { echo "usage: $0 [-j | -l] business|ops DIR" >&2; exit 2; }
if [[ "$(stat -f -c %T "$2")" =~ ^(tmpfs|ramfs)$ ]]; then
  echo "$2 is not fit for $1: it is memory (${BASH_REMATCH[1]}), and a machine that restarts loses it"
  exit 1
fi
for limit in SYNC_P99_MS SYNC_P999_MS JOURNAL_MBS WRITE_MBS READ_P99_MS; do
  [[ "${!limit:-0}" =~ ^[0-9]+(\.[0-9]+)?(e[0-9]+)?$ ]] || { echo "$0: $limit=${!limit} is not a number" >&2; exit 2; }
done
for program in fio jq; do command -v "$program" >/dev/null || { echo "$0: $program is not installed" >&2; exit 2; }; done

here=$(cd "$(dirname "$0")" && pwd)
DIR=$(mktemp -d "$2/fio-check.XXXXXX")
trap 'rm -rf "$DIR"' EXIT
export DIR SIZE="${SIZE:-1g}" RUNTIME="${RUNTIME:-10s}"

# run runs jobs, and adds an object for each to the file results, under its name with $1 behind it.
run() {
  local suffix=$1
  shift
  fio --output-format=json --output="$DIR/out.json" "$@" >/dev/null || { echo "$0: fio failed" >&2; exit 2; }
  jq -c --arg suffix "$suffix" '.jobs[] | .jobname += $suffix' "$DIR/out.json" >>"$DIR/results"
}
[[ "$use" == ledgers ]] || run '' "$here/journal.fio"
[[ "$use" == journal ]] || run '' "$here/ledgers.fio"
if [[ "$use" == both ]]; then
  run + --section=journal-64k --section=ledgers-write --section=ledgers-read "$here/journal.fio" "$here/ledgers.fio"
fi

fit=0
# judge prints a line of the table: judge JOB MEASURE UNIT FILTER max|min LIMIT. An empty limit is not judged.
judge() {
  local got verdict=
  got=$(jq -r "select(.jobname == \"$1\") | $4 | select(. > 0)" "$DIR/results")
  [[ -n "$got" ]] || { echo "$0: fio measured nothing for $1, $2: raise RUNTIME or SIZE" >&2; exit 2; }
  if [[ -n "$6" ]]; then
    verdict=ok
    awk -v got="$got" -v limit="$6" -v bound="$5" 'BEGIN { exit !(bound == "max" ? got <= limit : got >= limit) }' || { verdict='NOT FIT'; fit=1; }
  fi
  awk -v job="$1" -v measure="$2" -v got="$got" -v unit="$3" -v bound="$5" -v limit="$6" -v verdict="$verdict" \
    'BEGIN { printf "%-14s %-17s %9.2f %-4s  %-12s %s\n", job, measure, got, unit, limit == "" ? "" : bound " " limit, verdict }'
}

printf '%-14s %-17s %9s %-4s  %-12s\n' job measure here '' limit
if [[ "$use" != ledgers ]]; then
  jobs=(journal-4k journal-64k)
  [[ "$use" == journal ]] || jobs+=(journal-64k+)
  for job in "${jobs[@]}"; do
    judge "$job" 'sync, p99' ms '.sync.lat_ns.percentile."99.000000" / 1e6' max "${SYNC_P99_MS:-${limits[0]}}"
    judge "$job" 'sync, p99.9' ms '.sync.lat_ns.percentile."99.900000" / 1e6' max "${SYNC_P999_MS:-${limits[1]}}"
    judge "$job" 'sync, worst' ms '.sync.lat_ns.max / 1e6' '' ''
  done
  judge journal-1m written MB/s '.write.bw_bytes / 1e6' min "${JOURNAL_MBS:-${limits[2]}}"
fi
if [[ "$use" != journal ]]; then
  judge ledgers-write written MB/s '.write.bw_bytes / 1e6' min "${WRITE_MBS:-${limits[3]}}"
  judge ledgers-read 'read, p99' ms '.read.clat_ns.percentile."99.000000" / 1e6' max "${READ_P99_MS:-${limits[4]}}"
fi
if ((fit)); then echo "$2 is not fit for $1 ($use)"; else echo "$2 is fit for $1 ($use)"; fi
exit "$fit"
