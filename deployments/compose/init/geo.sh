#!/bin/sh
# Has the two clusters of two-zones.yaml know each other, and replicate aviary/geo. They have no metadata in common, so each is told the same.
set -eu
for zone in a b; do
  admin() { bin/pulsar-admin --admin-url "http://pulsar-$zone:8080" "$@"; }
  for other in a b; do
    verb=create
    if [ "$other" = "$zone" ]; then verb=update; fi # a standalone registers itself, without these addresses
    if admin clusters list | grep -q "zone-$other"; then verb=update; fi
    admin clusters "$verb" "zone-$other" --url "http://pulsar-$other:8080" --broker-url "pulsar://pulsar-$other:6650"
  done
  admin tenants list | grep -qx aviary || admin tenants create aviary --allowed-clusters zone-a,zone-b
  admin namespaces list aviary | grep -qx aviary/geo || admin namespaces create aviary/geo --clusters zone-a,zone-b
  admin namespaces list aviary | grep -qx aviary/events || admin namespaces create aviary/events --clusters "zone-$zone"
  for namespace in aviary/geo aviary/events; do
    admin namespaces set-deduplication "$namespace" --enable
    admin namespaces set-retention "$namespace" --time 24h --size 1G
    admin namespaces set-subscription-expiration-time "$namespace" --time 0
  done
done
