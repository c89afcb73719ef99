package request

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// Redis reads the names of options up to a zero byte: it takes "STORE\x00" for STORE. The proxy and
// the library compare whole arguments, and would not recognize such an option: they would treat a
// write as a read, or a blocking command as one that does not block. So the proxy refuses it.

// OptionsStart returns where the options of a command may begin, if the proxy or the library also
// read them; 0 for all other commands.
func OptionsStart(cmd *command.Command) int {
	switch cmd.Name {
	case "xread", "xreadgroup":
		return 1
	case "sort", "sort_ro", "zadd", "geoadd", "bitfield", "getex", "xadd", "lmpop", "blmpop":
		return 2
	case "set", "copy", "client|tracking", "lmove", "blmove":
		return 3
	case "georadius", "georadiusbymember":
		return 5
	}
	return 0
}

// HasNULTerminatedOption reports whether an argument contains an option up to a zero byte: it is an
// option for Redis, but not for the proxy.
func HasNULTerminatedOption(cmd *command.Command, r Request, from int) bool {
	leading := false
	switch cmd.Name {
	case "zadd", "geoadd": // options come first, and values follow
		leading = true
	case "xadd":
		return hasNULTerminatedTrim(r, from)
	case "lmpop", "blmpop":
		cmd.Keys(r.Raw, r.Args, func(i int) bool {
			from = i + 1
			return true
		})
	}
	for i := from; i < r.Len(); i++ {
		word := r.Arg(i)
		zero := bytes.IndexByte(word, 0)
		switch {
		case zero >= 0 && isOption(word[:zero]):
			return true
		case leading && !isOption(word):
			return false
		}
	}
	return false
}

// hasNULTerminatedTrim is HasNULTerminatedOption for XADD, whose options end at the id. Neither a value
// of an option nor an id may have a zero byte.
func hasNULTerminatedTrim(r Request, from int) bool {
	isValue := false
	for i := from; i < r.Len(); i++ {
		word, takesValue := r.Arg(i), false
		for _, option := range [...]string{"maxlen", "minid", "limit", "=", "~"} {
			takesValue = takesValue || resp.EqualFold(word, option)
		}
		switch {
		case bytes.IndexByte(word, 0) >= 0:
			return true
		case !isValue && !takesValue && !resp.EqualFold(word, "nomkstream"):
			return false
		}
		isValue = takesValue
	}
	return false
}

// isOption reports whether a word is an option of one of the commands of OptionsStart.
func isOption(word []byte) bool {
	for _, option := range [...]string{
		"nx", "xx", "gt", "lt", "ch", "incr", "get", "ex", "px", "exat", "pxat", "keepttl", "persist", "db", "replace", "by", "limit", "asc", "desc", "alpha",
		"store", "storedist", "count", "any", "withcoord", "withdist", "withhash", "block", "group", "noack", "streams", "overflow", "incrby", "set", "redirect",
		"left", "right",
	} {
		if resp.EqualFold(word, option) {
			return true
		}
	}
	return false
}

// SortPatternError returns the error of Redis for a SORT whose patterns may name keys that a user
// may not use, or "".
func SortPatternError(r Request) string {
	for i := 2; i+1 < r.Len(); i++ {
		switch {
		case resp.EqualFold(r.Arg(i), "by") && bytes.IndexByte(r.Arg(i+1), '*') >= 0:
			return "ERR BY option of SORT denied due to insufficient ACL permissions"
		case resp.EqualFold(r.Arg(i), "get"):
			return "ERR GET option of SORT denied due to insufficient ACL permissions"
		}
	}
	return ""
}

// Stores reports whether SORT, GEORADIUS or GEORADIUSBYMEMBER may have the option STORE or
// STOREDIST. Only then do they write.
func Stores(cmd *command.Command, r Request) bool {
	first := 4
	if cmd.Name == "sort" {
		first = 2
	}
	for i := first; i < r.Len(); i++ {
		if resp.EqualFold(r.Arg(i), "store") || first > 2 && resp.EqualFold(r.Arg(i), "storedist") {
			return true
		}
	}
	return false
}
