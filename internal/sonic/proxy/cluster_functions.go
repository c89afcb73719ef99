package proxy

import (
	"bytes"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// useAnySlot gives a write without keys, which Redis will refuse, the slot of some primary.
func (c *client) useAnySlot() {
	if c.loop.cfg.Replicate && c.slot == noSlot {
		c.slot = c.loop.firstSlots[0]
	}
}

// callBatchOfShards returns the begin of a call of several writes. It has no key: with one, Redis would
// refuse all writes if the slot of the first has moved. Then the others, which are sent again, would
// run behind later commands of their clients.
func callBatchOfShards() []byte {
	b := resp.AppendBulk(nil, "FCALL")
	b = resp.AppendBulk(b, "sonic_many")
	return resp.AppendBulk(b, "0")
}

// deliverShards distributes the reply of a call of n writes to their clients, in front of a Redis
// Cluster. The reply is a list, or one error for all. Writes that were refused are sent again alone.
func (b *backend) deliverShards(n int, reply []byte) {
	b.checkReadOnly(reply)
	var all [][]byte
	if reply[0] == '*' {
		if all = resp.Elements(reply); len(all) != n {
			b.lost(errUnexpectedReply)
			return
		}
	}
	var calls [][]byte
	for i := range n {
		one := reply
		if all != nil {
			one = all[i]
		}
		p := b.replies.front()
		if !b.refusal(p, one) {
			if p.client.waitsFor(p.slot, p.order) {
				p.client.overtaken(p.slot, p.order)
				p = b.replies.front()
			}
			b.begin(p)
			p.client.deliver(replies.FromFunction(p.cmd, false, one, b.proto))
			b.completed()
			continue
		}
		if calls == nil {
			calls = b.singleCalls(n - i)
		}
		retried, call := *p, calls[len(calls)-(n-i)]
		retried.batchSize = 0
		b.replies.pop()
		b.retry(retried, call, one)
	}
}

// singleCalls returns the calls of the last n of several writes that go to Redis in one call, each as
// a call of its own. They are the first pending ones.
func (b *backend) singleCalls(n int) [][]byte {
	words := resp.Elements(b.command(n - 1))
	var writes [][][]byte // of each write the head, the outbox and the arguments
	for rest := words[4:]; len(rest) > 1; {
		head := resp.Text(rest[0])
		end := 2 + int(head[len(head)-1]-'0')
		writes = append(writes, rest[:end])
		rest = rest[end:]
	}
	all := make([][]byte, n)
	for i, write := range writes[len(writes)-n:] {
		out := resp.AppendHeader(nil, '*', len(write)+3)
		out = append(out, b.loop.proxy.functions[b.replies.at(i).cmd.Index]...)
		out = append(append(out, write[1]...), words[3]...)
		all[i] = append(out, slices.Concat(write[2:]...)...)
	}
	return all
}

// refused handles the last reply to a transaction with Config.Replicate. If Redis has executed nothing
// of it, or only refused writes, the transaction is sent again, and waits is true. Otherwise refused
// returns the reply to EXEC.
func (e *execution) refused(reply []byte) (answer []byte, waits bool) {
	c, l := e.c, e.c.loop
	writesRefused := e.writesRefused(reply)
	e.b.opened = e.b.opened && !writesRefused
	switch {
	case e.watched:
		if e.redirection != nil || !e.connectionBound && writesRefused {
			e.redirection = nil
			reply = nullArray(c.proto) // nothing was written: the client tries again
		}
		return reply, false
	case e.redirection != nil:
		to := *e.redirection
		e.redirection = nil
		l.cfg.Cluster.Refresh()
		if !to.Asking && len(c.refused) == 0 && e.MayFollow(to) {
			if target := l.connectionTo(to.Address, 0, c.proto); target.opened || !e.connectionBound {
				e.send(target, c.replies.current)
				return nil, true
			}
		}
		reply = movingAbort()
		if e.script {
			reply = resp.AppendError(nil, errMoving)
		}
		e.refusal = nil
	case !e.connectionBound && writesRefused:
	default:
		if order := c.replies.current; c.waitsFor(e.slot, order) {
			c.overtaken(e.slot, order)
		}
		return reply, false
	}
	e.wait(bytes.Clone(reply))
	return nil, true
}

// writesRefused reports whether all writes of the transaction were refused: no Sonic has opened the
// primary, or it may lack effects of the slot.
func (e *execution) writesRefused(reply []byte) bool {
	if !e.endsEffects || !e.ran(reply) || !bytes.HasSuffix(reply, []byte("\r\n")) {
		return false
	}
	last := bytes.LastIndexByte(reply[:len(reply)-2], '\n') + 1 // the reply of sonic_tx is one line if it is an error
	return replies.IsNotOpened(reply[last:]) || bytes.HasPrefix(reply[last:], []byte("-TRYAGAIN "))
}

// wait sends the transaction again after a pause. reply is the one to EXEC if it has waited for too
// long.
func (e *execution) wait(reply []byte) {
	c, order := e.c, e.c.replies.current
	order.parts++ // the reply is not complete while the transaction waits
	c.outstanding++
	release := func() {
		c.partDone(order)
		c.replyDone()
	}
	if !e.waited {
		e.waited, e.Since = true, c.loop.now
		c.waiting++
	}
	c.wait(refusedCommand{
		slot: e.slot, place: order.place, since: e.Since, opened: e.connectionBound,
		send: func(b *backend) {
			e.send(b, order)
			release()
		},
		fail: func() {
			c.replies.current = order
			e.releaseClient()
			answer, _ := e.answer(reply)
			c.deliver(answer)
			release()
		},
	})
}

// lostUnsent sends a transaction again that Redis has not received because its connection was lost. It
// returns false if the primary cannot be reached.
func (e *execution) lostUnsent() bool {
	if !e.c.loop.cfg.Replicate || e.watched || e.c.closed || e.b.unreachable() {
		return false
	}
	e.wait(resp.AppendError(nil, errPrimaryUnreachable))
	return true
}

// In front of a Redis Cluster all keys of a transaction are in one slot, and it goes to the primary
// of that slot as a whole.

// addToCluster adds the slot of a command to the transaction. It returns an error for a command that
// cannot be part of it.
func (tx *transaction) addToCluster(cmd *command.Command, slot int) (problem string) {
	if ofAllPrimaries(cmd) {
		return "ERR Sonic refuses '" + cmd.Name + "' inside a transaction: it concerns all primaries of the cluster"
	}
	var same bool
	if tx.slot, same = joinSlots(tx.slot, slot); !same {
		return errCrossSlot
	}
	return ""
}

// clusterExecution is what a transaction in front of a Redis Cluster needs to be sent again.
type clusterExecution struct {
	slot        int
	redirection *upstream.Redirection // in the replies
	upstream.Attempts
	watched bool // it runs on the client's own connection, after WATCH

	// With Config.Replicate only:

	guarded bool // moveGuard is in it
	waited  bool // it is among client.waiting
}

// noteRedirection keeps the first redirection in the replies: Redis has then discarded the
// transaction.
func (e *execution) noteRedirection(reply []byte) {
	if e.redirection != nil {
		return
	}
	if to, ok := upstream.RedirectionOf(reply, e.b.primary); ok {
		e.redirection = &to
	}
}

// resend sends the transaction to the primary that has the slot now, or again after a pause. It
// returns false if it may not.
func (e *execution) resend() bool {
	c, l, order, to := e.c, e.c.loop, e.c.replies.current, *e.redirection
	e.redirection = nil
	l.cfg.Cluster.Refresh()
	// ASK would have to precede each command. The slot has moved soon.
	if !to.Asking && e.MayFollow(to) {
		e.send(l.connectionTo(to.Address, 0, c.proto), order)
		return true
	}
	order.parts++ // the reply is not complete while the transaction waits
	c.outstanding++
	done := func() { order.parts--; c.outstanding-- }
	if !c.waitForCluster(&e.Attempts, func() { e.send(l.primaryOf(e.slot, c.proto), order); done() }) {
		done()
		return false
	}
	return true
}

// movingAbort returns the answer to EXEC when its slot moves.
func movingAbort() []byte {
	return resp.AppendError(nil, "EXECABORT Transaction discarded because of: "+errMoving)
}

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
