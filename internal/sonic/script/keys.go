package script

import "strconv"

// Keys are the names of a shard's state keys. All are in database 0 and in one slot.
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

	prefix string
}

// KeysOf returns the names for a shard, which counts from 0.
func KeysOf(shard int) Keys {
	prefix := "{sonic:" + strconv.Itoa(shard) + "}"
	return Keys{
		Outbox: prefix + "out", Versions: prefix + "ver", Cursors: prefix + "cur", Slots: prefix + "slots", Meta: prefix + "meta", Boot: prefix + "boot",
		Dropped: prefix + "dropped", Markers: prefix + "mark", Recovery: prefix + "recovery",
		prefix: prefix,
	}
}

// Part returns the name of the string that collects the parts of a message of origin whose payload
// is too large for one message.
func (k Keys) Part(origin string) string { return k.prefix + "part:" + origin }

// None returns the name of a key that does not exist. In front of a Redis Cluster the call of
// sonic_mark names it behind the outbox: while the slot moves, Redis then refuses the whole
// transaction. Otherwise it would run the script in it, and the effects would be lost.
func (k Keys) None() string { return k.prefix + "none" }
