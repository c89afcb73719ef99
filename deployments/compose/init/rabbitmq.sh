#!/bin/sh
# A parcel each second to the queue of RabbitMQ, which Pigeonhole has declared.
set -eu
n=0
while sleep 1; do
  n=$((n + 1))
  rabbitmqadmin -q -H rabbitmq -u aviary -p aviary publish exchange=amq.default routing_key=parcels payload="{\"parcel\": $n}"
done
