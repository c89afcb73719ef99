// Package request reads commands of clients, and does checks that Redis itself cannot do. It may
// not import replies, access, upstream or eventloop.
package request

import (
	"bytes"
	"slices"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// StateKeyError is the error for a command that names a state key.
const StateKeyError = "NOPERM keys that begin with {sonic: belong to Sonic"

// Request is a command of a client. It is valid only while it is executed.
type Request struct {
	Raw  []byte // as an array of bulk strings
	Args []resp.Arg
	// Script is the script that it names, or has the text of, if Redis knows it by another name.
	Script *publishing.Script
}

// With returns the request with another argument i, which is not the name.
func (r Request) With(i int, value []byte) Request {
	before, old := r.Args[i-1].End+2, r.Args[i]
	raw := append(make([]byte, 0, len(r.Raw)+len(value)), r.Raw[:before]...)
	raw = resp.AppendBulk(raw, value)
	end := len(raw) - 2
	r.Raw = append(raw, r.Raw[old.End+2:]...)
	r.Args = slices.Clone(r.Args)
	r.Args[i] = resp.Arg{Start: end - len(value), End: end}
	for j := i + 1; j < len(r.Args); j++ {
		r.Args[j].Start += end - old.End
		r.Args[j].End += end - old.End
	}
	return r
}

// Arg returns argument i; 0 is the name.
func (r Request) Arg(i int) []byte { return r.Raw[r.Args[i].Start:r.Args[i].End] }

// Len returns the number of arguments, including the name.
func (r Request) Len() int { return len(r.Args) }

// ArgsAfter returns the arguments after the first n, as bulk strings.
func (r Request) ArgsAfter(n int) []byte { return r.Raw[r.Args[n-1].End+2:] }

// LongestArg returns the length of the longest argument.
func (r Request) LongestArg() (n int64) {
	for _, arg := range r.Args {
		n = max(n, int64(arg.End-arg.Start))
	}
	return n
}

// AllowedWhileSubscribed reports whether a client of RESP2 with subscriptions may run a command.
func AllowedWhileSubscribed(name string) bool {
	switch name {
	case "subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe", "ping", "quit", "reset":
		return true
	}
	return false
}

// CString returns what C prints with %.*s: at most most bytes, up to a zero byte.
func CString(b []byte, most int) []byte {
	b = b[:min(len(b), most)]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return b
}
