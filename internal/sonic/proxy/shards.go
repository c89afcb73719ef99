package proxy

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// With Config.Replicate each slot of a Redis Cluster is a shard: writes are calls of functions with
// the stream of effects of the slot of their keys.

// shards holds what the proxy sends about the shards of a Redis Cluster.
type shards struct {
	outboxes [][]byte // by slot: the name of the stream, as a bulk string; nil without Config.Replicate
	names    [][]byte // names of the other state keys of a slot, without what they begin with, as bulk strings
}

func newShards(zones []string) shards {
	s := shards{outboxes: make([][]byte, cluster.Slots)}
	all := make([]byte, 0, cluster.Slots*26)
	for slot := range s.outboxes {
		start := len(all)
		all = resp.AppendBulk(all, script.SlotOutbox(slot))
		s.outboxes[slot] = all[start:len(all):len(all)]
	}
	for _, name := range state.Names(zones) {
		s.names = append(s.names, resp.AppendBulk(nil, name))
	}
	return s
}

// outbox returns the stream of effects of a slot, as a bulk string. For a single Redis it returns
// nil: the calls of functions have it already.
func (p *Proxy) outbox(slot int) []byte {
	if p.shards.outboxes == nil {
		return nil
	}
	return p.shards.outboxes[slot]
}

// moveGuard returns a command that makes Redis refuse the MULTI that it is in while the slot moves:
// it reads a key that does not exist. Redis finds that out before it executes anything of the
// MULTI. A function notices a move only when commands before it have run.
func moveGuard(slot int) []byte {
	return resp.AppendCommand(nil, "EXISTS", strings.TrimSuffix(script.SlotOutbox(slot), "out")+"none")
}

// countSlots is for how many slots one call counts state keys: other commands wait for it.
const countSlots = 1024

// countScript counts the state keys of slots. Its arguments are the number of other names, the names,
// and what the names begin with. All state keys of a slot are gone if it has no stream, but for marks.
// A slot that has just moved away counts nothing.
const countScript = `local n, total = tonumber(ARGV[1]), 0
for i = n + 2, #ARGV do
	local prefix = '{sonic:' .. ARGV[i] .. '}'
	local found = redis.pcall('EXISTS', prefix .. 'out', prefix .. 'mark')
	if type(found) == 'number' and found > 0 then
		local others = {}
		for j = 1, n do others[j] = prefix .. ARGV[j + 1] end
		local more = redis.pcall('EXISTS', unpack(others))
		total = total + found + (type(more) == 'number' and more or 0)
	end
end
return total`

// countStateKeys returns the parts that count the state keys of all slots.
func (l *loop) countStateKeys() (parts []part) {
	s := &l.proxy.shards
	for _, of := range l.firstSlots {
		owner, numbers := l.slots.Owner(of), []byte(nil)
		n := 0
		add := func() {
			if n == 0 {
				return
			}
			out := resp.AppendHeader(nil, '*', 4+len(s.names)+n)
			out = resp.AppendBulk(resp.AppendBulk(resp.AppendBulk(out, "EVAL_RO"), countScript), "0")
			out = resp.AppendBulk(out, strconv.Itoa(len(s.names)))
			for _, name := range s.names {
				out = append(out, name...)
			}
			parts = append(parts, part{slot: of, command: append(out, numbers...), reads: true})
			numbers, n = nil, 0
		}
		for slot := range cluster.Slots {
			if l.slots.Owner(slot) != owner {
				continue
			}
			_, rest, _ := strings.Cut(string(s.outboxes[slot]), "{sonic:")
			number, _, _ := strings.Cut(rest, "}")
			numbers = resp.AppendBulk(numbers, number)
			if n++; n == countSlots {
				add()
			}
		}
		add()
	}
	return parts
}

// dbSizeOfAll runs DBSIZE on all primaries, without state keys.
func (c *client) dbSizeOfAll(raw []byte) bool {
	var parts []part
	for _, slot := range c.loop.firstSlots {
		parts = append(parts, part{slot: slot, command: raw, reads: true})
	}
	n := len(parts)
	parts = append(parts, c.loop.countStateKeys()...)
	return c.gather(parts, unlessError(func(all [][]byte) []byte {
		keys, _ := resp.ParseInt(resp.Text(sum(all[:n])))
		state, _ := resp.ParseInt(resp.Text(sum(all[n:])))
		return resp.AppendHeader(nil, ':', int(max(0, keys-state)))
	}))
}

// flushFunctionsOfAll runs FUNCTION FLUSH on all primaries: it deletes each library but Sonic's own.
func (c *client) flushFunctionsOfAll() bool {
	l := c.loop
	if c.outstanding > 0 {
		return false
	}
	c.busy = true
	left, found := len(l.firstSlots), map[string]struct{}{}
	var problem []byte
	arrived := func(reply []byte) {
		if reply[0] == '-' {
			problem = append([]byte(nil), reply...)
		}
		for _, name := range replies.LibraryNames(reply) {
			found[name] = struct{}{}
		}
		if left--; left > 0 {
			return
		}
		c.commandDone()
		switch {
		case c.closed:
		case problem != nil:
			c.reply(problem)
		default:
			c.deleteLibraries(found)
		}
	}
	for _, slot := range l.firstSlots {
		l.primaryOf(slot, 2).send(pending{kind: handled, then: &replyHandler{
			onReply: arrived,
			onLost:  func(bool) { arrived(resp.AppendError(nil, errPrimaryUnreachable)) },
		}}, resp.AppendCommand(nil, "FUNCTION", "LIST"))
	}
	return true
}

// deleteLibraries deletes libraries on all primaries, and answers the client.
func (c *client) deleteLibraries(found map[string]struct{}) {
	slots := c.loop.firstSlots
	var parts []part
	for name := range found {
		for _, slot := range slots {
			parts = append(parts, part{slot: slot, command: resp.AppendCommand(nil, "FUNCTION", "DELETE", name)})
		}
	}
	if len(parts) == 0 {
		c.reply([]byte(replyOK))
		return
	}
	c.gather(parts, func(all [][]byte) []byte {
		for ; len(all) > 0; all = all[len(slots):] {
			if one := joinDeletions(all[:len(slots)]); one[0] == '-' && !bytes.HasPrefix(one, []byte("-ERR Library not found")) {
				return one
			}
		}
		return []byte(replyOK)
	})
}
