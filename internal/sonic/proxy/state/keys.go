// Package state names the keys in which Sonic keeps its own state in Redis. Clients may not use
// them.
package state

import "github.com/aviaryhq/aviary/internal/sonic/resp"

const (
	// Prefix begins the names of all state keys.
	Prefix = "{sonic:"
	// Outbox names the stream of effects of the only shard.
	Outbox = "{sonic:0}out"
)

// IsKey reports whether a key is a state key.
func IsKey(key []byte) bool {
	return len(key) >= len(Prefix) && key[0] == '{' && string(key[:len(Prefix)]) == Prefix
}

// CountCommand returns the command that counts state keys.
func CountCommand(zones []string) []byte {
	words := []string{"EXISTS", Outbox}
	for _, name := range []string{"ver", "cur", "meta", "told", "want", "owe", "boot", "unsent"} {
		words = append(words, "{sonic:0}"+name)
	}
	for _, zone := range zones {
		words = append(words, "{sonic:0}part:"+zone)
	}
	return resp.AppendCommand(nil, words...)
}
