#!/bin/sh
# Makes the namespaces of compose.yaml: pulsar.sh ADMIN-URL
set -eu
admin() { bin/pulsar-admin --admin-url "$url" "$@"; }
url=$1

admin tenants list | grep -qx aviary || admin tenants create aviary
for namespace in aviary/shop aviary/events; do
  admin namespaces list aviary | grep -qx "$namespace" || admin namespaces create "$namespace"
  admin namespaces set-deduplication "$namespace" --enable
  admin namespaces set-retention "$namespace" --time 24h --size 1G
  admin namespaces set-subscription-expiration-time "$namespace" --time 0
done
topic=persistent://aviary/shop/orders
admin topics list-partitioned-topics aviary/shop | grep -qx "$topic" || admin topics create-partitioned-topic "$topic" --partitions 4
