package script

import "strings"

// Translation says how the reply of a function becomes the reply that the command gives outside a
// function: Lua cannot express all replies.
type Translation uint8

const (
	// Unchanged is for replies that need no translation.
	Unchanged Translation = iota

	// NullArray is for RESP2's null arrays: a null bulk string, "$-1", becomes "*-1". It applies only
	// to the whole reply, not to elements. RESP3 has a single null and needs no translation.
	NullArray

	// NullArrayOfCount is NullArray if the command has a second argument, the count.
	NullArrayOfCount

	// Integer is for integers beyond 2^53, which a Lua number cannot hold: a simple string, "+123",
	// becomes the integer ":123". It is the whole reply, or an element of the reply's array.
	Integer
)

// TranslationOf returns the translation of the replies of a command, whose name is in lower case.
func TranslationOf(command string) Translation {
	switch command {
	case "lpop", "rpop":
		return NullArrayOfCount
	case "lmpop", "zmpop", "blpop", "brpop", "blmpop", "bzpopmin", "bzpopmax", "bzmpop":
		return NullArray
	case "incr", "decr", "incrby", "decrby", "hincrby", "bitfield":
		return Integer
	default:
		return Unchanged
	}
}

// ErrorOf returns the error that a client gets instead of the error of a function: Redis uses other
// texts when it refuses a function than when it refuses a command. Both are without the leading
// "-".
func ErrorOf(text string) string {
	switch {
	case strings.HasPrefix(text, "OOM the outbox is full"):
		return text
	case strings.HasPrefix(text, "OOM "):
		return "OOM command not allowed when used memory > 'maxmemory'."
	case strings.HasPrefix(text, "READONLY "):
		return "READONLY You can't write against a read only replica."
	case strings.HasPrefix(text, "MISCONF Redis is configured to save RDB snapshots"):
		return "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk. " +
			"Commands that may modify the data set are disabled, because this instance is configured to report errors during writes " +
			"if RDB snapshotting fails (stop-writes-on-bgsave-error option). Please check the Redis logs for details about the RDB error."
	case strings.HasPrefix(text, "MISCONF "):
		if _, reason, found := strings.Cut(text, "AOF error: "); found {
			return "MISCONF Errors writing to the AOF file: " + reason
		}
		return text
	default:
		return text
	}
}
