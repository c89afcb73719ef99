package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// Redis reads the names of options up to a zero byte: to it "STORE\x00" is STORE. The endpoint and the library compare whole arguments, and would take
// such a word for something else: a write for a read, one that waits for one that does not. So it is refused.

// optionsFrom returns where the options of a command may begin, when something depends on them that is not Redis itself; 0 for all other commands.
func optionsFrom(cmd *command.Command) int {
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

// disguised reports whether an option of the command is one to Redis only.
func disguised(cmd *command.Command, r request, from int) bool {
	leading := false
	switch cmd.Name {
	case "zadd", "geoadd": // what follows are values
		leading = true
	case "xadd":
		return disguisedTrim(r, from)
	case "lmpop", "blmpop":
		cmd.Keys(r.raw, r.args, func(i int) bool {
			from = i + 1
			return true
		})
	}
	for i := from; i < r.len(); i++ {
		word := r.arg(i)
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

// disguisedTrim is disguised for XADD, whose options end at the id.
func disguisedTrim(r request, from int) bool {
	for i := from; i < r.len(); i++ {
		word := r.arg(i)
		zero := bytes.IndexByte(word, 0)
		if zero >= 0 {
			word = word[:zero]
		}
		switch {
		case resp.EqualFold(word, "maxlen"), resp.EqualFold(word, "minid"):
			i++
			if i < r.len() {
				exact := r.arg(i)
				if len(exact) > 1 && (exact[0] == '=' || exact[0] == '~') && exact[1] == 0 {
					return true
				}
				if string(exact) == "=" || string(exact) == "~" {
					i++
				}
			}
		case resp.EqualFold(word, "limit"):
			i++
		case resp.EqualFold(word, "nomkstream"):
		default:
			return false
		}
		if zero >= 0 {
			return true
		}
	}
	return false
}

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

// deniedPattern returns Redis' error of a SORT whose patterns name keys that a user may not name.
func deniedPattern(r request) string {
	for i := 2; i+1 < r.len(); i++ {
		switch {
		case resp.EqualFold(r.arg(i), "by") && bytes.IndexByte(r.arg(i+1), '*') >= 0:
			return "ERR BY option of SORT denied due to insufficient ACL permissions"
		case resp.EqualFold(r.arg(i), "get"):
			return "ERR GET option of SORT denied due to insufficient ACL permissions"
		}
	}
	return ""
}
