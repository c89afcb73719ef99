#!/bin/sh
# An order each second to the topic of Kafka.
n=0
while sleep 1; do
  n=$((n + 1))
  echo "customer-$((n % 10)):{\"order\": $n, \"total\": $((n * 37 % 200))}"
done | /opt/kafka/bin/kafka-console-producer.sh --bootstrap-server kafka:9092 --topic orders --property parse.key=true --property key.separator=:
