package script

import (
	"strconv"
	"strings"
)

// Keys are the names of a lane's state keys. They are in database 0, all in one slot.
type Keys struct {
	Outbox   string // stream of effects: the order of writes, and the clock
	Versions string // hash: versions of keys and elements
	Cursors  string // hash: origin zone to the last id applied of it
	Meta     string // hash: zone, epoch, shipped, layout
	Boot     string // hash: after a bootstrap, how far the source was when it read a key without versions
	Unsent   string // hash: what effects changed that were dropped
	Live     string // not a key: the shard channel of effects that do not go by way of the stream

	prefix string
}

// KeysOf returns the names for a lane, which counts from 0.
func KeysOf(lane int) Keys {
	prefix := "{sonic:" + strconv.Itoa(lane) + "}"
	return Keys{
		Outbox: prefix + "out", Versions: prefix + "ver", Cursors: prefix + "cur", Meta: prefix + "meta", Boot: prefix + "boot",
		Unsent: prefix + "unsent", Live: prefix + "live",
		prefix: prefix,
	}
}

// Part returns the name of the string that collects the parts of an effect of origin which is too
// large for one message.
func (k Keys) Part(origin string) string { return k.prefix + "part:" + origin }

// IsStateKey reports whether key is one of Sonic's own, of any lane.
func IsStateKey(key string) bool { return strings.HasPrefix(key, "{sonic:") }

// Mode says how a function is to run a write.
type Mode struct {
	DB        int    // the client's database
	Tx        string // id of the client's transaction in hexadecimal digits, empty outside one
	Published bool   // the reply is [id of the outbox's entry or nil, reply]
	RESP3     bool   // the client speaks RESP3
}

// AppendMode appends the first argument of every function that runs a write.
func AppendMode(dst []byte, m Mode) []byte {
	dst = strconv.AppendInt(dst, int64(m.DB), 10)
	if m.Published {
		dst = append(dst, 'p')
	}
	if m.RESP3 {
		dst = append(dst, 'r')
	}
	if m.Tx != "" {
		dst = append(dst, 't')
		dst = append(dst, m.Tx...)
	}
	return dst
}
