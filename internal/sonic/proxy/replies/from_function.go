// Package replies converts Redis' replies before clients get them. It converts the replies of
// functions to those of commands, and removes Sonic's own keys and the passwords of Redis. It may
// not import request, access, upstream or eventloop.
package replies

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// Nulls of the protocols.
const (
	nullBulk  = "$-1\r\n"
	NullArray = "*-1\r\n"
	NullRESP3 = "_\r\n"
)

// Errors of the library and of Redis that mean that no Sonic has opened this Redis, and the error
// that clients get instead.
const (
	notReady       = "-SONICNOTREADY"
	noFunction     = "-ERR Function not found"
	NotOpenedError = "LOADING Sonic has not opened this Redis yet, /zones of its admin port has the reason: the command was not run"
)

// ofDestination precedes the error of a blocking command whose destination is of the wrong type.
const ofDestination = "-SONICDESTINATION "

// FromFunction turns the reply of a function into the reply of the command itself.
func FromFunction(cmd *command.Command, emptyArray bool, reply []byte, proto int) []byte {
	switch reply[0] {
	case '$':
		// Lua has one nil, but RESP2 has two nulls.
		if emptyArray && proto == 2 && string(reply) == nullBulk {
			return []byte(NullArray)
		}
	case '+':
		// Lua's numbers are exact only up to 2^53: the library returns larger integers as text.
		if script.TranslationOf(cmd.Name) == script.Integer {
			return toInteger(reply)
		}
	case '*':
		if script.TranslationOf(cmd.Name) == script.Integer {
			return toIntegers(reply)
		}
	case '-':
		if IsNotOpened(reply) {
			return resp.AppendError(nil, NotOpenedError)
		}
		if wrong, ok := bytes.CutPrefix(reply, []byte(ofDestination)); ok {
			return append([]byte("-"), wrong...)
		}
		if bytes.HasPrefix(reply, []byte("-OOM ")) || bytes.HasPrefix(reply, []byte("-READONLY ")) || bytes.HasPrefix(reply, []byte("-MISCONF ")) {
			return resp.AppendError(nil, script.ErrorOf(string(resp.Text(reply))))
		}
	}
	return reply
}

// toInteger converts a number that the library returned as text to an integer.
func toInteger(reply []byte) []byte {
	if _, ok := resp.ParseInt(resp.Text(reply)); !ok {
		return reply
	}
	converted := append([]byte(nil), reply...)
	converted[0] = ':'
	return converted
}

// toIntegers applies toInteger to each element of an array.
func toIntegers(reply []byte) []byte {
	if !bytes.Contains(reply, []byte("\n+")) {
		return reply
	}
	all := resp.Elements(reply)
	converted := resp.AppendHeader(nil, '*', len(all))
	for _, one := range all {
		if one[0] == '+' {
			one = toInteger(one)
		}
		converted = append(converted, one...)
	}
	return converted
}

// RepliesNullArray reports whether a command that finds nothing replies with RESP2's null array
// instead of the null string.
func RepliesNullArray(cmd *command.Command, arguments int) bool {
	switch script.TranslationOf(cmd.Name) {
	case script.NullArrayOfCount:
		return arguments == 3
	case script.NullArray:
		return true
	default:
		return false
	}
}

// IsWrongSource reports whether a function found a key of the wrong type that it was to take an
// element from.
func IsWrongSource(reply []byte) bool { return bytes.HasPrefix(reply, []byte("-WRONGTYPE ")) }

// IsNotOpened reports whether a function did not run, because it is missing or because no Sonic has
// opened this Redis since it started.
func IsNotOpened(reply []byte) bool {
	return bytes.HasPrefix(reply, []byte(notReady)) || bytes.HasPrefix(reply, []byte(noFunction))
}

// IsNull reports whether a reply is a null of either protocol.
func IsNull(reply []byte) bool {
	switch string(reply) {
	case nullBulk, NullArray, NullRESP3:
		return true
	}
	return false
}
