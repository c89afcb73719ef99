package script_test

import (
	"strconv"
	"strings"
)

// isStateKey reports whether key is a state key of any shard.
func isStateKey(key string) bool { return strings.HasPrefix(key, "{sonic:") }

// A callMode says how a function runs a write.
type callMode struct {
	DB        int    // the client's database
	Tx        string // id of the client's transaction in hexadecimal digits, empty outside one
	Published bool   // the reply is [id of the outbox's entry or nil, reply]
	RESP3     bool   // the client speaks RESP3
}

// String returns the first argument of every function that runs a write.
func (m callMode) String() string {
	s := strconv.Itoa(m.DB)
	if m.Published {
		s += "p"
	}
	if m.RESP3 {
		s += "r"
	}
	if m.Tx != "" {
		s += "t" + m.Tx
	}
	return s
}
