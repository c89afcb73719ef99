#!/usr/bin/env bash
# Compares the collector's options of configs/pulsar/business/jvm.env with those that the original had before (32 parallel and 32 concurrent threads, a new
# generation of fixed size): gc.sh PULSAR-HOME. It starts a Pulsar standalone of the unpacked distribution with each in turn, ROUNDS times, publishes with
# pulsar-perf, and prints the collector's pauses and the publish latencies. It needs curl and ports 16650, 18080 and 13181 of this machine.
#
# Variables: ROUNDS (2), SECONDS_EACH (60, after half as long to warm up), RATE (messages of 1 KiB a second, without batches: 5000), HEAP_MB (512).
set -euo pipefail

[[ $# == 1 && -x "$1/bin/pulsar" ]] || { echo "usage: $0 PULSAR-HOME" >&2; exit 2; }
home=$(cd "$1" && pwd)
rounds=${ROUNDS:-2} seconds=${SECONDS_EACH:-60} rate=${RATE:-5000} heap=${HEAP_MB:-512}
unset PULSAR_GC BOOKIE_GC PULSAR_MEM BOOKIE_MEM
# shellcheck source=/dev/null
. "$(dirname "$0")/../../configs/pulsar/business/jvm.env"
declare -A options=(
  [before]="-XX:+UseG1GC -XX:ParallelGCThreads=32 -XX:ConcGCThreads=32 -Xmn$((heap / 2))m -XX:+PerfDisableSharedMem -XX:+AlwaysPreTouch"
  [after]=$PULSAR_GC
)

dir=$(mktemp -d "${TMPDIR:-/tmp}/gc.XXXXXX")
server=
stop() {
  [[ -z "$server" ]] || { kill "$server" 2>/dev/null || true; wait "$server" 2>/dev/null || true; }
  server=
}
trap 'stop; rm -rf "$dir"' EXIT
export PULSAR_LOG_DIR=$dir/logs

produce() { # SECONDS
  PULSAR_MEM=-Xmx256m PULSAR_GC=-XX:+UseSerialGC PULSAR_GC_LOG='-Xlog:disable' "$home/bin/pulsar-perf" produce -u pulsar://127.0.0.1:16650 \
    -db -r "$rate" -s 1024 -time "$1" persistent://public/default/gc 2>&1
}

# percentile prints the value at a share of the sorted numbers in a file.
percentile() { sort -n "$2" | awk -v share="$1" '{ v[NR] = $1 } END { i = int(share * NR + 0.999); print NR ? v[i < 1 ? 1 : i] : 0 }'; }

measure() { # before|after
  local data=$dir/data log=$dir/gc.log skip
  rm -rf "$data" "$log"
  sed -e 's/^brokerServicePort=.*/brokerServicePort=16650/' -e 's/^webServicePort=.*/webServicePort=18080/' -e 's/^bindAddress=.*/bindAddress=127.0.0.1/' \
    -e 's/^advertisedAddress=.*/advertisedAddress=127.0.0.1/' -e 's/^journalSyncData=.*/journalSyncData=true/' "$home/conf/standalone.conf" >"$dir/standalone.conf"
  printf '\nallowEphemeralPorts=true\n' >>"$dir/standalone.conf" # for --bookkeeper-port
  PULSAR_STANDALONE_CONF=$dir/standalone.conf PULSAR_MEM="-Xms${heap}m -Xmx${heap}m -XX:MaxDirectMemorySize=1g" PULSAR_GC=${options[$1]} \
    PULSAR_GC_LOG="-Xlog:gc:file=$log" "$home/bin/pulsar" standalone --no-functions-worker --no-stream-storage \
    --metadata-dir "$data/metadata" --bookkeeper-dir "$data/bookkeeper" --bookkeeper-port 13181 >"$dir/server.log" 2>&1 &
  server=$!
  until curl -sf -o /dev/null http://127.0.0.1:18080/admin/v2/brokers/health; do
    kill -0 "$server" 2>/dev/null || { grep ' ERROR ' "$dir/server.log" | tail -n 3 >&2; exit 1; }
    sleep 1
  done
  produce $((seconds / 2)) >/dev/null
  skip=$(wc -l <"$log")
  produce "$seconds" >"$dir/perf"
  tail -n +$((skip + 1)) "$log" | sed -nE 's/.* Pause .* ([0-9.]+)ms$/\1/p' >"$dir/pauses"
  stop
  sed -nE 's/.*Aggregated latency stats.* med: *([0-9.]+) .* 99pct: *([0-9.]+) - 99.9pct: *([0-9.]+) .* Max: *([0-9.]+).*/\1 \2 \3 \4/p' "$dir/perf" >"$dir/latencies"
  read -r median p99 p999 worst <"$dir/latencies"
  echo "$1 $(wc -l <"$dir/pauses") $(percentile 0.5 "$dir/pauses") $(percentile 1 "$dir/pauses") $median $p99 $p999 $worst" | tee -a "$dir/results" |
    awk '{ printf "%-8s %7d %9.1f %9.1f %9.1f %9.1f %9.1f %9.1f\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
}

echo "$(nproc) processors, heap $heap MiB, $rate messages of 1 KiB a second for $seconds s. Milliseconds:"
printf '%-8s %7s %9s %9s %9s %9s %9s %9s\n' options pauses median worst 'publish' p99 p99.9 worst
for ((round = 0; round < rounds; round++)); do
  measure before
  measure after
done
awk '
  { for (i = 3; i <= NF; i++) sum[$1, i] += $i }
  END {
    printf "%-8s %7s", "ratio", ""
    for (i = 3; i <= 8; i++) printf " %9s", sum["before", i] ? sprintf("%.2f", sum["after", i] / sum["before", i]) : "-"
    print "   (after / before, means of the rounds)"
  }' "$dir/results"
