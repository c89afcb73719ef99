package proxy

import (
	"bytes"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// slotKeys are the keys of a command that are in one slot.
type slotKeys struct {
	slot int
	keys []int // their positions among the arguments
}

// split runs a command that the proxy splits if its keys are in several slots: see splits. There is
// a part for each slot, since Redis refuses several slots even if one primary has them all. The
// command is not atomic then: other clients may see the effect of some parts only. If a part fails,
// the client gets the first error, and the effects of the other parts stay.
func (c *client) split(cmd *command.Command, r request.Request) bool {
	if c.slot != manySlots {
		return c.writeOrRelay(cmd, r)
	}
	calls := c.loop.proxy.writesBy(cmd, r)
	if calls && !c.writable() {
		return c.delayOrRefuseWrite()
	}
	values := 0 // arguments of each key, behind it
	if cmd.Name == "mset" {
		values = 1
		if r.Len()%2 == 0 {
			return c.replyError("ERR wrong number of arguments for 'mset' command")
		}
	}
	groups := groupBySlot(cmd, r)
	parts := make([]part, len(groups))
	for i, group := range groups {
		parts[i] = part{slot: group.slot, command: partOf(r, group.keys, values), reads: cmd.Class == command.Read}
		if calls {
			n, function := len(group.keys)*(1+values), c.loop.proxy.functions[cmd.Index]
			parts[i].command = c.loop.proxy.appendCall(nil, function, group.slot, c.mode, n, appendKeysOf(nil, r, group.keys, values))
			parts[i].cmd = cmd
		}
	}
	return c.gather(parts, func(all [][]byte) []byte {
		if problem := replies.FirstError(all); problem != nil {
			return problem
		}
		switch cmd.Name {
		case "mget":
			return joinValues(groups, all, r.Len()-1)
		case "mset":
			return []byte(replyOK)
		default:
			return replies.Sum(all)
		}
	})
}

// groupBySlot returns the keys of a command by slot, in the order of the arguments.
func groupBySlot(cmd *command.Command, r request.Request) (groups []slotKeys) {
	bySlot := map[int]int{} // positions in groups
	cmd.Keys(r.Raw, r.Args, func(i int) bool {
		slot := cluster.Slot(r.Arg(i))
		at, known := bySlot[slot]
		if !known {
			at = len(groups)
			bySlot[slot] = at
			groups = append(groups, slotKeys{slot: slot})
		}
		groups[at].keys = append(groups[at].keys, i)
		return true
	})
	return groups
}

// partOf returns the command with some of its keys, each with so many values behind it.
func partOf(r request.Request, keys []int, values int) []byte {
	size := r.Args[0].End + 2
	for _, i := range keys {
		size += r.Args[i+values].End - r.Args[i-1].End
	}
	out := resp.AppendHeader(make([]byte, 0, size), '*', 1+len(keys)*(1+values))
	return appendKeysOf(resp.AppendBulk(out, r.Arg(0)), r, keys, values)
}

// appendKeysOf appends some of the keys of a command, each with so many values behind it.
func appendKeysOf(out []byte, r request.Request, keys []int, values int) []byte {
	for _, i := range keys {
		out = append(out, r.Raw[r.Args[i-1].End+2:r.Args[i+values].End+2]...)
	}
	return out
}

// joinValues returns the reply to MGET of n keys: the values in the order of the client's keys.
func joinValues(groups []slotKeys, all [][]byte, n int) []byte {
	values := make([][]byte, n)
	for i, group := range groups {
		found := resp.Elements(all[i])
		if len(found) != len(group.keys) {
			return resp.AppendError(nil, replies.ErrUnexpectedPart)
		}
		for j, at := range group.keys {
			values[at-1] = found[j]
		}
	}
	return replies.Array(values)
}

// part is a command that the proxy sends as a part of a client's command.
type part struct {
	slot    int // it goes to the primary of this slot
	command []byte
	reads   bool             // as in pending
	cmd     *command.Command // the command is a call of its function; nil: it is none
}

// gather sends the parts of a client's command, and answers the client by what join makes of their
// replies, in the order of the parts. An error is among the replies as it came. It returns false if
// the client has to wait: see primary.
func (c *client) gather(parts []part, join func(replies [][]byte) []byte) bool {
	l := c.loop
	if c.slotsAt != l.slotsAt && c.outstanding > 0 {
		return false
	}
	c.slotsAt = l.slotsAt
	order := c.addReply()
	order.parts = 1 // until all parts are sent
	all, left, gathered := make([][]byte, len(parts)), len(parts), 0
	arrived := func(i int, reply []byte) {
		if c.closed {
			return
		}
		all[i] = bytes.Clone(reply)
		gathered += len(reply)
		c.replies.bytes += len(reply)
		if c.closeIfSlow(); c.closed {
			return
		}
		if left--; left == 0 {
			c.replies.bytes -= gathered
			c.replies.current = order
			c.deliver(join(all))
		}
	}
	for i := range parts {
		p := &parts[i]
		b := l.primaryOf(p.slot, c.proto)
		c.slot = p.slot
		then := &replyHandler{
			onReply: func(reply []byte) {
				if p.cmd != nil {
					reply = replies.FromFunction(p.cmd, false, reply, c.proto)
				}
				arrived(i, reply)
			},
			onLost: func(sent bool) { arrived(i, l.lossError(sent)) },
		}
		b.send(pending{client: c, order: order, kind: handled, then: then, call: p.cmd != nil, reads: p.reads}, p.command)
		if i == 0 || b.full() {
			c.backend = b // the client pauses while it is full
		}
	}
	c.partDone(order)
	return true
}

// A part for a primary goes to the primary of one of its slots. So, if a replica takes over, the
// part that was not sent yet goes there.

// joinOfAll returns how to join the replies to a command that the proxy sends to all primaries as it
// is; nil if it is no such command.
func joinOfAll(cmd *command.Command) replies.Join {
	switch cmd.Name {
	case "keys":
		return replies.UnlessError(replies.JoinKeys)
	case "dbsize", "pubsub|numpat", "latency|reset":
		return replies.UnlessError(replies.Sum)
	case "flushall", "flushdb", "script|load", "script|flush", "function|load", "function|flush", "slowlog|reset", "memory|purge":
		return replies.UnlessError(func(all [][]byte) []byte { return all[0] })
	case "function|delete":
		return replies.JoinDeletions
	case "script|exists":
		return replies.JoinNumbers(func(a, b int) int { return min(a, b) })
	case "pubsub|channels", "pubsub|shardchannels":
		return replies.UnlessError(replies.Union)
	case "pubsub|numsub", "pubsub|shardnumsub":
		return replies.JoinNumbers(func(a, b int) int { return a + b })
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
func askAll(join replies.Join) handler {
	return func(c *client, cmd *command.Command, r request.Request) bool {
		parts := make([]part, len(c.loop.firstSlots))
		for i, slot := range c.loop.firstSlots {
			parts[i] = part{slot: slot, command: r.Raw, reads: cmd.Class == command.Read}
		}
		return c.gather(parts, join)
	}
}

// randomKeyOfAll runs RANDOMKEY on all primaries, and answers with the key of one of them.
func (c *client) randomKeyOfAll(cmd *command.Command, r request.Request) bool {
	if c.loop.cfg.SlotOutboxes { // most keys of a primary may be state keys
		r.Raw = c.loop.proxy.randomKey
	}
	return askAll(replies.UnlessError(func(all [][]byte) []byte {
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

// cursorPrimaries is how many primaries a cursor of SCAN can name. A Redis Cluster has at most about
// 1000 nodes.
const cursorPrimaries = 1024

// scanAll runs SCAN on one primary after the other, in the order of their ids. The client's cursor is
// the one of Redis times cursorPrimaries plus the number of the primary. That of Redis is below 2^53,
// for it is smaller than the hash table.
//
// While slots move, or when a replica takes over, a SCAN may miss keys.
func (c *client) scanAll(cmd *command.Command, r request.Request) bool {
	cursor, err := strconv.ParseUint(string(r.Arg(1)), 10, 64)
	if err != nil {
		return c.replyError("ERR invalid cursor")
	}
	slots, at := c.loop.firstSlots, int(cursor%cursorPrimaries)
	if at >= len(slots) { // a primary is gone
		return c.reply([]byte("*2\r\n$1\r\n0\r\n*0\r\n"))
	}
	one := r.With(1, strconv.AppendUint(nil, cursor/cursorPrimaries, 10))
	return c.gather([]part{{slot: slots[at], command: one.Raw, reads: true}}, func(all [][]byte) []byte {
		reply := c.loop.proxy.filterReply(cmd, all[0], c, 0)
		found := resp.Elements(reply)
		if len(found) != 2 {
			return reply // an error
		}
		next, err := strconv.ParseUint(string(resp.Text(found[0])), 10, 64)
		if err != nil {
			return resp.AppendError(nil, replies.ErrUnexpectedPart)
		}
		switch {
		case next > 0:
			next = next*cursorPrimaries + uint64(at)
		case at+1 < len(slots):
			next = uint64(at) + 1
		}
		out := resp.AppendHeader(nil, '*', 2)
		out = resp.AppendBulk(out, strconv.AppendUint(nil, next, 10))
		return append(out, found[1]...)
	})
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
	names := state.Names(l.cfg.Zones)
	for _, of := range l.firstSlots {
		owner, numbers := l.slots.Owner(of), []byte(nil)
		n := 0
		add := func() {
			if n == 0 {
				return
			}
			out := resp.AppendHeader(nil, '*', 4+len(names)+n)
			out = resp.AppendBulk(resp.AppendBulk(resp.AppendBulk(out, "EVAL_RO"), countScript), "0")
			out = resp.AppendBulk(out, strconv.Itoa(len(names)))
			for _, name := range names {
				out = resp.AppendBulk(out, name)
			}
			parts = append(parts, part{slot: of, command: append(out, numbers...), reads: true})
			numbers, n = nil, 0
		}
		for slot := range cluster.Slots {
			if l.slots.Owner(slot) != owner {
				continue
			}
			_, rest, _ := strings.Cut(string(l.proxy.outboxes[slot]), "{sonic:")
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
	return c.gather(parts, replies.UnlessError(func(all [][]byte) []byte {
		keys, _ := resp.ParseInt(resp.Text(replies.Sum(all[:n])))
		state, _ := resp.ParseInt(resp.Text(replies.Sum(all[n:])))
		return resp.AppendHeader(nil, ':', int(max(0, keys-state)))
	}))
}
