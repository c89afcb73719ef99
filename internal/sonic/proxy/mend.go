package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const (
	nullBulk  = "$-1\r\n"
	nullArray = "*-1\r\n"
	null3     = "_\r\n"

	notReady = "-SONICNOTREADY"
)

// mend turns what a function replied into what the command itself would have replied.
func (p *Proxy) mend(cmd *command.Command, emptyArray bool, reply []byte, proto int) []byte {
	switch reply[0] {
	case '$':
		// Lua has one nil, RESP2 has two.
		if emptyArray && proto == 2 && string(reply) == nullBulk {
			return []byte(nullArray)
		}
	case '+':
		// Lua's numbers end at 2^53: the library gives larger ones as text.
		if givesInteger(cmd.Name) && len(reply) > 3 {
			if _, ok := resp.ParseInt(reply[1 : len(reply)-2]); ok {
				mended := append([]byte(nil), reply...)
				mended[0] = ':'
				return mended
			}
		}
	case '-':
		if bytes.HasPrefix(reply, []byte(notReady)) {
			return resp.AppendError(nil, "LOADING Sonic has not opened this Redis yet: the command was not run")
		}
	}
	return reply
}

func givesInteger(name string) bool {
	switch name {
	case "incr", "incrby", "decr", "decrby", "hincrby":
		return true
	}
	return false
}

// emptyArray reports whether a command that finds nothing replies with RESP2's null array, and not with its null string.
func emptyArray(cmd *command.Command, arguments int) bool {
	switch cmd.Name {
	case "lpop", "rpop":
		return arguments == 3
	case "lmpop", "zmpop":
		return true
	}
	return false
}

func isNull(reply []byte) bool {
	switch string(reply) {
	case nullBulk, nullArray, null3:
		return true
	}
	return false
}
