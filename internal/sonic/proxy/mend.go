package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

const (
	nullBulk  = "$-1\r\n"
	nullArray = "*-1\r\n"
	null3     = "_\r\n"

	notReady     = "-SONICNOTREADY"
	noFunction   = "-ERR Function not found"
	errNotOpened = "LOADING Sonic has not opened this Redis yet: the command was not run"
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
		if script.MendOf(cmd.Name) == script.MendInteger {
			return mendInteger(reply)
		}
	case '*':
		if script.MendOf(cmd.Name) == script.MendInteger {
			return mendIntegers(reply)
		}
	case '-':
		if isNotOpened(reply) {
			return resp.AppendError(nil, errNotOpened)
		}
		if bytes.HasPrefix(reply, []byte("-OOM ")) || bytes.HasPrefix(reply, []byte("-READONLY ")) || bytes.HasPrefix(reply, []byte("-MISCONF ")) {
			return resp.AppendError(nil, script.ErrorOf(string(resp.Text(reply))))
		}
	}
	return reply
}

func mendInteger(reply []byte) []byte {
	if _, ok := resp.ParseInt(resp.Text(reply)); !ok {
		return reply
	}
	mended := append([]byte(nil), reply...)
	mended[0] = ':'
	return mended
}

func mendIntegers(reply []byte) []byte {
	all, err := resp.Elements(reply)
	if err != nil || !bytes.Contains(reply, []byte("\n+")) {
		return reply
	}
	mended := resp.AppendHeader(nil, '*', len(all))
	for _, one := range all {
		if one[0] == '+' {
			one = mendInteger(one)
		}
		mended = append(mended, one...)
	}
	return mended
}

// emptyArray reports whether a command that finds nothing replies with RESP2's null array, and not with its null string.
func emptyArray(cmd *command.Command, arguments int) bool {
	switch script.MendOf(cmd.Name) {
	case script.MendNullArrayOfCount:
		return arguments == 3
	case script.MendNullArray:
		return true
	default:
		return false
	}
}

// isNotOpened reports whether a function is missing or refuses to run because no Sonic has looked at this Redis since it
// began: it did not run.
func isNotOpened(reply []byte) bool {
	return bytes.HasPrefix(reply, []byte(notReady)) || bytes.HasPrefix(reply, []byte(noFunction))
}

func isNull(reply []byte) bool {
	switch string(reply) {
	case nullBulk, nullArray, null3:
		return true
	}
	return false
}
