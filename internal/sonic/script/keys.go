package script

import "strconv"

// Keys are the names of a shard's state keys. All are in database 0 and in one slot. The library has
// further ones, such as part:<origin>, which collects the parts of a large message.
type Keys struct {
	Outbox   string // stream of effects: the order of writes, and the clock
	Versions string // hash: versions of keys and elements
	Cursors  string // hash: origin zone to the last applied id of that zone
	Slots    string // hash: the same for each slot of zones with a Redis Cluster
	Meta     string // hash: zone, epoch, shipped, layout
	Boot     string // hash: after a bootstrap, the source's progress at the moment when it read a key without versions
	Dropped  string // hash: what dropped effects changed
	Markers  string // hash: zone to the message of its topic up to which a primary of a cluster has all
	Recovery string // hash: zone to the message of its topic behind which this slot of a Redis Cluster may lack effects
}

// KeysOf returns the names for a shard, which counts from 0.
func KeysOf(shard int) Keys {
	prefix := "{sonic:" + strconv.Itoa(shard) + "}"
	return Keys{
		Outbox: prefix + "out", Versions: prefix + "ver", Cursors: prefix + "cur", Slots: prefix + "slots", Meta: prefix + "meta", Boot: prefix + "boot",
		Dropped: prefix + "dropped", Markers: prefix + "mark", Recovery: prefix + "recovery",
	}
}
