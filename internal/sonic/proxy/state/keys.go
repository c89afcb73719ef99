// Package state names the keys in which Sonic keeps its own state in Redis. Clients may not use
// them. The package may not import the other packages of the proxy.
package state

import "github.com/aviaryhq/aviary/internal/sonic/resp"

const (
	// Prefix begins the names of all state keys.
	Prefix = "{sonic:"
	// Outbox names the stream of effects of a single Redis.
	Outbox = "{sonic:0}out"
)

// IsKey reports whether a key is a state key.
func IsKey(key []byte) bool {
	return len(key) >= len(Prefix) && key[0] == '{' && string(key[:len(Prefix)]) == Prefix
}

// Names returns the names of the state keys besides an outbox, without "{sonic:n}", for a zone that
// has these zones.
func Names(zones []string) []string {
	names := []string{"ver", "cur", "slots", "meta", "reported", "requests", "answers", "boot", "dropped", "recovery"}
	for _, zone := range zones {
		names = append(names, "part:"+zone)
	}
	return names
}

// SizeCommand returns the command for DBSIZE without the state keys, in front of a single Redis.
func SizeCommand(zones []string) []byte {
	words := []string{"EVAL_RO", "return redis.call('DBSIZE') - redis.call('EXISTS', unpack(ARGV))", "0", Outbox}
	for _, name := range Names(zones) {
		words = append(words, "{sonic:0}"+name)
	}
	return resp.AppendCommand(nil, words...)
}
