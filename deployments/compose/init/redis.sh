#!/bin/sh
# A write each second by Sonic: redis.sh HOST
set -eu
n=0
while sleep 1; do
  n=$((n + 1))
  redis-cli -e -h "$1" -p 6380 set "order:$((n % 1000))" "$n" >/dev/null
  redis-cli -e -h "$1" -p 6380 incr count:orders >/dev/null
done
