package replies

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// ErrUnexpectedPart is the error for a client whose command some primary has answered in another way
// than the others.
const ErrUnexpectedPart = "ERR Sonic cannot read the reply of a primary of the cluster"

// Join makes the reply to a client's command of those of all primaries.
type Join func(all [][]byte) []byte

// UnlessError returns the first error among the replies, if there is one.
func UnlessError(join Join) Join {
	return func(all [][]byte) []byte {
		if problem := FirstError(all); problem != nil {
			return problem
		}
		return join(all)
	}
}

// JoinKeys returns all elements of lists of keys, without state keys.
func JoinKeys(all [][]byte) []byte { return joinLists(all, func([]byte) bool { return true }) }

// Union returns the elements of lists, each once.
func Union(all [][]byte) []byte {
	seen := map[string]struct{}{}
	return joinLists(all, func(element []byte) bool {
		before := len(seen)
		seen[string(element)] = struct{}{}
		return len(seen) > before
	})
}

// joinLists returns a list of those elements of lists that are no state keys and that take accepts.
func joinLists(all [][]byte, take func(element []byte) bool) []byte {
	var kept [][]byte
	for _, list := range all {
		for _, element := range resp.Elements(WithoutStateKeys(list)) {
			if take(element) {
				kept = append(kept, element)
			}
		}
	}
	return Array(kept)
}

// JoinDeletions joins the replies to FUNCTION DELETE. A primary may lack a library: one that is new,
// or one where FUNCTION LOAD has failed.
func JoinDeletions(all [][]byte) []byte {
	reply := all[0]
	for _, one := range all {
		switch {
		case bytes.HasPrefix(one, []byte("-ERR Library not found")):
		case one[0] == '-':
			return one
		default:
			reply = one
		}
	}
	return reply
}

// JoinNumbers returns how to join lists with the same elements but for numbers.
func JoinNumbers(join func(a, b int) int) Join {
	return UnlessError(func(all [][]byte) []byte {
		elements := resp.Elements(all[0])
		for _, list := range all[1:] {
			others := resp.Elements(list)
			if len(others) != len(elements) {
				return resp.AppendError(nil, ErrUnexpectedPart)
			}
			for i, element := range elements {
				if element[0] != ':' {
					continue
				}
				a, _ := resp.ParseInt(resp.Text(element))
				b, _ := resp.ParseInt(resp.Text(others[i]))
				elements[i] = resp.AppendHeader(nil, ':', join(int(a), int(b)))
			}
		}
		return Array(elements)
	})
}

// Array returns the array of elements.
func Array(elements [][]byte) []byte {
	size := 16
	for _, element := range elements {
		size += len(element)
	}
	out := resp.AppendHeader(make([]byte, 0, size), '*', len(elements))
	for _, element := range elements {
		out = append(out, element...)
	}
	return out
}

// Sum returns the sum of replies that are numbers.
func Sum(all [][]byte) []byte {
	total := 0
	for _, reply := range all {
		n, ok := resp.ParseInt(resp.Text(reply))
		if !ok {
			return resp.AppendError(nil, ErrUnexpectedPart)
		}
		total += int(n)
	}
	return resp.AppendHeader(nil, ':', total)
}

// FirstError returns the first error among replies, nil without one.
func FirstError(all [][]byte) []byte {
	for _, reply := range all {
		if len(reply) > 0 && reply[0] == '-' {
			return reply
		}
	}
	return nil
}
