#!/usr/bin/env bash
# Compares three sets of options for the collector on this machine: gc.sh PULSAR-HOME, about five minutes.
#   zgc    Pulsar's own: what the distribution's conf/pulsar_env.sh chooses
#   32/32  what the system that Aviary follows had first: "8/2" with 32 parallel and 32 concurrent threads and a new generation of fixed size
#   8/2    configs/pulsar/business/jvm.env
# It starts a standalone Pulsar of the unpacked distribution with each in turn, publishes with pulsar-perf, and prints how long all threads stood still for the
# collector, and how long a publish took. The next round has the opposite order. It needs curl and ports 16650, 18080 and 13181 of this machine.
#
# Variables: ROUNDS (2; an even number is fair), SECONDS_EACH (20, after half as long to warm up), RATE (messages of 1 KiB a second, without batches: 5000),
# HEAP_MB (256: small, so that collections come often enough).
set -euo pipefail

[[ $# == 1 && -x "$1/bin/pulsar" ]] || { echo "usage: $0 PULSAR-HOME" >&2; exit 2; }
home=$(cd "$1" && pwd)
[[ ! -e "$home/conf/jvm.env" ]] || { echo "$0: apply.sh has changed $home: its options are not Pulsar's own" >&2; exit 2; }
rounds=${ROUNDS:-2} seconds=${SECONDS_EACH:-20} rate=${RATE:-5000} heap=${HEAP_MB:-256}
unset PULSAR_GC BOOKIE_GC PULSAR_MEM BOOKIE_MEM
# shellcheck source=/dev/null
. "$(dirname "$0")/../../configs/pulsar/business/jvm.env"
many=${PULSAR_GC/ParallelGCThreads=8/ParallelGCThreads=32}
declare -A options=([zgc]='' [32/32]="${many/ConcGCThreads=2/ConcGCThreads=32} -Xmn$((heap / 2))m" [8/2]=$PULSAR_GC)

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
    -db -r "$rate" -s 1024 -time "$1" persistent://public/default/gc >"$dir/perf" 2>&1 || fail 'pulsar-perf failed' "$dir/perf"
}
fail() { # TEXT FILE
  { echo "$0: $1:"; grep -E 'ERROR|Exception' "$2" | tail -n 3; } >&2
  exit 1
}

# percentile prints the value at a share of the sorted numbers in a file.
percentile() { sort -n "$2" | awk -v share="$1" '{ v[NR] = $1 } END { i = int(share * NR + 0.999); print NR ? v[i < 1 ? 1 : i] : 0 }'; }

measure() { # SET
  local data=$dir/data log=$dir/gc.log skip
  rm -rf "$data" "$log"
  sed -e 's/^brokerServicePort=.*/brokerServicePort=16650/' -e 's/^webServicePort=.*/webServicePort=18080/' -e 's/^bindAddress=.*/bindAddress=127.0.0.1/' \
    -e 's/^advertisedAddress=.*/advertisedAddress=127.0.0.1/' -e 's/^journalSyncData=.*/journalSyncData=true/' "$home/conf/standalone.conf" >"$dir/standalone.conf"
  printf '\nallowEphemeralPorts=true\n' >>"$dir/standalone.conf" # for --bookkeeper-port
  PULSAR_STANDALONE_CONF=$dir/standalone.conf PULSAR_MEM="-Xms${heap}m -Xmx${heap}m -XX:MaxDirectMemorySize=1g" PULSAR_GC=${options[$1]} \
    PULSAR_GC_LOG="-Xlog:safepoint:file=$log" "$home/bin/pulsar" standalone --no-functions-worker --no-stream-storage \
    --metadata-dir "$data/metadata" --bookkeeper-dir "$data/bookkeeper" --bookkeeper-port 13181 >"$dir/server.log" 2>&1 &
  server=$!
  until curl -sf -o /dev/null http://127.0.0.1:18080/admin/v2/brokers/health; do
    kill -0 "$server" 2>/dev/null || fail "Pulsar stopped with $1" "$dir/server.log"
    sleep 1
  done
  produce $((seconds / 2))
  skip=$(wc -l <"$log")
  produce "$seconds"
  # Safepoints of a collector have its letter: G1CollectForAllocation, ZMarkStart, XMarkStart.
  tail -n +$((skip + 1)) "$log" | sed -nE 's/.*Safepoint "[GXZ].* Total: *([0-9]+) ns.*/\1/p' | awk '{ print $1 / 1e6 }' >"$dir/pauses"
  stop
  sed -nE 's/.*Aggregated latency stats.* med: *([0-9.]+) .* 99pct: *([0-9.]+) - 99.9pct: *([0-9.]+) .* Max: *([0-9.]+).*/\1 \2 \3 \4/p' "$dir/perf" >"$dir/latencies"
  read -r median p99 p999 worst <"$dir/latencies" || fail 'pulsar-perf printed no latencies' "$dir/perf"
  echo "$1 $(wc -l <"$dir/pauses") $(percentile 0.5 "$dir/pauses") $(percentile 1 "$dir/pauses") $median $p99 $p999 $worst" | tee -a "$dir/results" |
    awk '{ printf "%-14s %6d %9.2f %9.2f %9.1f %9.1f %9.1f %9.1f\n", $1, $2, $3, $4, $5, $6, $7, $8 }'
}

echo "$(nproc) processors, $(java -version 2>&1 | head -n 1), heap $heap MiB, $rate messages of 1 KiB a second for $seconds s. Milliseconds:"
printf '%-14s %6s %9s %9s %9s %9s %9s %9s\n' options pauses median worst publish p99 p99.9 worst
order=(zgc 32/32 8/2)
for ((round = 0; round < rounds; round++)); do
  for set in "${order[@]}"; do measure "$set"; done
  order=("${order[2]}" "${order[1]}" "${order[0]}")
done
awk '
  { for (i = 3; i <= NF; i++) sum[$1, i] += $i }
  function ratio(other,  i) {
    printf "%-14s %6s", "8/2 to " other, ""
    for (i = 3; i <= 8; i++) printf " %9s", sum[other, i] ? sprintf("%.2f", sum["8/2", i] / sum[other, i]) : "-"
    print "   (ratio of the means)"
  }
  END { ratio("32/32"); ratio("zgc") }' "$dir/results"
