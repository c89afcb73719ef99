package proxy

import (
	"bytes"
	"math/rand/v2"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// A part for a primary goes to the primary of one of its slots. So, if a replica takes over, the
// part that was not sent yet goes there.

// joinAll makes the reply to a client's command of those of all primaries.
type joinAll func(all [][]byte) []byte

// joinOfAll returns how to join the replies to a command that the proxy sends to all primaries as it
// is; nil if it is no such command.
func joinOfAll(cmd *command.Command) joinAll {
	switch cmd.Name {
	case "keys":
		return unlessError(joinKeys)
	case "dbsize", "pubsub|numpat", "latency|reset":
		return unlessError(sum)
	case "flushall", "flushdb", "script|load", "script|flush", "function|load", "function|flush", "slowlog|reset", "memory|purge":
		return unlessError(func(all [][]byte) []byte { return all[0] })
	case "function|delete":
		return joinDeletions
	case "script|exists":
		return joinNumbers(func(a, b int) int { return min(a, b) })
	case "pubsub|channels", "pubsub|shardchannels":
		return unlessError(union)
	case "pubsub|numsub", "pubsub|shardnumsub":
		return joinNumbers(func(a, b int) int { return a + b })
	default:
		return nil
	}
}

// ofAllPrimaries reports whether a command concerns all primaries of a Redis Cluster.
func ofAllPrimaries(cmd *command.Command) bool {
	return cmd.Name == "scan" || cmd.Name == "randomkey" || joinOfAll(cmd) != nil
}

// askAll returns the handler of a command that goes to all primaries. They run it independently: if
// one fails, the client gets an error, and the effects on the others stay.
func askAll(join joinAll) handler {
	return func(c *client, cmd *command.Command, r request.Request) bool {
		parts := make([]part, len(c.loop.firstSlots))
		for i, slot := range c.loop.firstSlots {
			parts[i] = part{slot: slot, command: r.Raw, reads: cmd.Class == command.Read}
		}
		return c.gather(parts, join)
	}
}

// unlessError returns the first error among the replies, if there is one.
func unlessError(join joinAll) joinAll {
	return func(all [][]byte) []byte {
		if problem := firstError(all); problem != nil {
			return problem
		}
		return join(all)
	}
}

// joinKeys returns all elements of lists of keys, without state keys.
func joinKeys(all [][]byte) []byte { return joinLists(all, func([]byte) bool { return true }) }

// union returns the elements of lists, each once.
func union(all [][]byte) []byte {
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
		elements, err := resp.Elements(replies.WithoutStateKeys(list))
		if err != nil {
			return resp.AppendError(nil, errUnexpectedPart)
		}
		for _, element := range elements {
			if take(element) {
				kept = append(kept, element)
			}
		}
	}
	return array(kept)
}

// randomKeyOfAll runs RANDOMKEY on all primaries, and answers with the key of one of them.
func (c *client) randomKeyOfAll(cmd *command.Command, r request.Request) bool {
	if c.loop.cfg.Replicate { // most keys of a primary may be state keys
		r.Raw = c.loop.proxy.randomKey
	}
	return askAll(unlessError(func(all [][]byte) []byte {
		first := rand.IntN(len(all))
		for i := range all {
			reply := all[(first+i)%len(all)]
			if key := resp.Text(reply); key != nil && !state.IsKey(key) {
				return reply
			}
		}
		return c.null()
	}))(c, cmd, r)
}

// joinDeletions joins the replies to FUNCTION DELETE. A primary may lack a library: one that is new,
// or one where FUNCTION LOAD has failed.
func joinDeletions(all [][]byte) []byte {
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

// joinNumbers returns how to join lists with the same elements but for numbers.
func joinNumbers(join func(a, b int) int) joinAll {
	return unlessError(func(all [][]byte) []byte {
		elements, err := resp.Elements(all[0])
		if err != nil {
			return resp.AppendError(nil, errUnexpectedPart)
		}
		for _, list := range all[1:] {
			others, err := resp.Elements(list)
			if err != nil || len(others) != len(elements) {
				return resp.AppendError(nil, errUnexpectedPart)
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
		return array(elements)
	})
}

// firstSlots returns the first slot of each primary, in the order of m.Primaries.
func firstSlots(m *cluster.Map) []int {
	bySlot := map[string]int{}
	for slot := range cluster.Slots {
		address := m.Owner(slot)
		if _, known := bySlot[address]; !known {
			bySlot[address] = slot
		}
	}
	var slots []int
	for _, primary := range m.Primaries() {
		slots = append(slots, bySlot[primary.Address])
	}
	return slots
}
