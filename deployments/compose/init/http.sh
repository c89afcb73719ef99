#!/bin/sh
# A bus, a subscriber that gets large orders on a topic, and an event each second: http.sh URL TOPIC
set -eu
bus=$1/v1/buses/orders
send() { curl -sS --fail-with-body -o /dev/null "$@"; }

send -X PUT "$bus" -H 'Content-Type: application/json' -d '{}'
send -X PUT "$bus/subscribers/large" -H 'Content-Type: application/json' -d '{
  "rules": [{"name": "large", "pattern": {"type": ["order.placed"], "data": {"total": [{"numeric": [">", 100]}]}}}],
  "target": {"pulsar": {"topic": "'"$2"'"}}}'
n=0
while sleep 1; do
  n=$((n + 1))
  send "$bus/events" -H 'Content-Type: application/cloudevents+json' -d '{
    "specversion": "1.0", "id": "'"$(date +%s)-$n"'", "source": "/shop", "type": "order.placed", "data": {"order": '"$n"', "total": '"$((n * 37 % 200))"'}}'
done
