package proxy

import (
	"bytes"
	"slices"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// A primary of a Redis Cluster refuses commands while their slot moves, and calls of functions also
// until a Sonic has opened it. The proxy keeps what was refused, and sends it again after a pause. A
// client may have sent further commands meanwhile. To keep its commands in order,
//   - it sends no further ones while one waits,
//   - what is refused after the one that waits waits behind it, and all are sent again in order once
//     no other command of the client is in flight,
//   - as long as the first of those that wait is refused, it alone is sent again,
//   - a read of the same slot that was executed instead is executed again,
//   - and if a write of the same slot was executed instead, as when the slot has ceased to move in
//     between, the one that waits gets an error: it was not run.

// refusedCommand is a command of a client that waits until it is sent again.
type refusedCommand struct {
	slot  int
	place uint64    // as ordered.place
	since time.Time // when it was first refused
	// opened says that it may be sent only to a primary that a Sonic has opened.
	opened bool
	send   func(b *backend)
	// fail completes the command with an error.
	fail func()
}

// handleRefusal handles the reply to the first pending command if that has to be sent again, and
// reports whether it has.
func (b *backend) handleRefusal(reply []byte) bool {
	if b.replies.n == 0 || !b.replies.front().routed {
		return false
	}
	p := b.replies.front()
	if p.batchSize > 1 {
		return false // deliverBatch handles the refusals of a batch
	}
	if !b.isRefusal(p, reply) {
		if !p.reads {
			p.client.failOvertaken(p.slot, p.order)
		}
		if !p.client.waitsFor(p.slot, p.order) {
			return false
		}
	}
	retried, command := *p, bytes.Clone(b.command(0))
	b.replies.pop()
	b.retry(retried, command, reply)
	return true
}

// isRefusal reports whether the reply to p says that the command was not executed, and may be elsewhere
// or later.
func (b *backend) isRefusal(p *pending, reply []byte) bool {
	if reply[0] != '-' {
		return false
	}
	_, redirects := b.redirection(p, reply)
	// A replica refuses a call without keys in this way.
	return redirects || p.call && (replies.IsNotOpened(reply) || bytes.HasPrefix(reply, []byte("-READONLY ")))
}

// retry sends a command to another primary that the reply to it names, or later.
func (b *backend) retry(p pending, command, reply []byte) {
	l, c := b.loop, p.client
	l.cfg.Cluster.Refresh()
	b.opened = b.opened && !replies.IsNotOpened(reply)
	to, redirects := b.redirection(&p, reply)
	// The function would run at the importing primary while other keys are still at the other one.
	follows := redirects && !(to.Asking && p.call) && len(c.refused) == 0
	if follows && p.MayFollow(to) {
		target := l.connectionTo(to.Address, 0, b.proto)
		if to.Asking {
			p.asked = true
			target.send(discardReply(), resp.AppendCommand(nil, "ASKING"))
		}
		target.requeue(p, command)
		if target.full() {
			c.backend = target
			c.pauseIfAboveLimit()
		}
		return
	}
	if redirects && to.Moving || reply[0] != '-' { // of a read that was executed, the reply may be large
		reply = resp.AppendError(nil, errMoving)
	} else {
		reply = bytes.Clone(reply)
	}
	if p.asked && !p.reads && p.order.next != nil { // the former primary may have executed a later one
		c.complete(&p, reply)
		return
	}
	if p.Since.IsZero() {
		p.Since = l.now
		c.waiting++
	}
	w := refusedCommand{slot: p.slot, place: p.order.place, since: p.Since}
	w.send = func(target *backend) { target.requeue(p, command) }
	w.fail = func() { c.complete(&p, reply) }
	c.waitRefused(w)
}

// waitRefused makes a refused command wait. The command fails if it has waited for Backend.Wait.
func (c *client) waitRefused(w refusedCommand) {
	if c.closed || c.waitedTooLong(w.since) {
		w.fail()
		return
	}
	c.busy = true
	at := len(c.refused)
	for at > 0 && c.refused[at-1].place > w.place { // it was sent to another primary before
		at--
	}
	c.refused = slices.Insert(c.refused, at, w)
	c.scheduleRetry()
}

func (c *client) waitedTooLong(since time.Time) bool {
	return c.loop.now.Sub(since) >= c.loop.cfg.Backend.Wait
}

// scheduleRetry sends the client's refused commands again after a pause.
func (c *client) scheduleRetry() {
	if c.retryScheduled {
		return
	}
	c.retryScheduled = true
	c.loop.timers.Start(c.loop.now.Add(clusterPause), func() {
		c.retryScheduled = false
		c.retryRefused()
	})
}

// complete answers a command that is on no connection.
func (c *client) complete(p *pending, reply []byte) {
	c.replies.current = p.order
	switch p.kind {
	case function:
		c.deliver(replies.FromFunction(p.cmd, p.emptyArray, reply, c.proto))
	case handled:
		p.then.onReply(reply)
	default:
		c.deliver(reply)
	}
	c.pendingDone(p)
}

// before reports whether a command for a slot precedes another one of the client.
func (w *refusedCommand) before(slot int, other *ordered) bool {
	return w.slot == slot && w.place < other.place
}

// waitsFor reports whether commands for a slot that precede another one wait.
func (c *client) waitsFor(slot int, other *ordered) bool {
	return slices.ContainsFunc(c.refused, func(w refusedCommand) bool { return w.before(slot, other) })
}

// failOvertaken ends the waiting of commands for a slot: a later one was executed.
func (c *client) failOvertaken(slot int, later *ordered) {
	if !c.waitsFor(slot, later) {
		return
	}
	all := c.refused
	c.refused = nil
	for _, w := range all {
		if !w.before(slot, later) {
			c.refused = append(c.refused, w)
		}
	}
	current := c.replies.current
	for _, w := range all {
		if w.before(slot, later) && !c.closed {
			w.fail()
		}
	}
	c.replies.current = current
}

// retryRefused sends the client's refused commands again: the first one, and if that is another one
// than before, all.
func (c *client) retryRefused() {
	if c.closed || len(c.refused) == 0 {
		return
	}
	if c.outstanding > len(c.refused) { // what is in flight may be refused, too
		c.scheduleRetry()
		return
	}
	c.slotsAt = c.loop.slotsAt
	n, first := len(c.refused), &c.refused[0]
	if first.place == c.firstRetried.place && first.slot == c.firstRetried.slot {
		n = 1
	}
	c.firstRetried.place, c.firstRetried.slot = first.place, first.slot
	for ; n > 0 && !c.closed && len(c.refused) > 0; n-- {
		w := c.refused[0]
		b := c.loop.primaryOf(w.slot, c.proto)
		if w.opened && !b.opened && !c.waitedTooLong(w.since) {
			c.retryScheduled = true
			b.askOpened(func(string) {
				c.retryScheduled = false
				if b.opened {
					c.retryRefused()
				} else {
					c.scheduleRetry()
				}
			})
			return
		}
		c.refused = c.refused[1:]
		if w.opened && !b.opened {
			w.fail()
		} else {
			w.send(b)
		}
	}
	if !c.closed && len(c.refused) > 0 {
		c.scheduleRetry() // they were refused at once
	}
}

// clusterPause is how long a command waits before it is tried again.
const clusterPause = 20 * time.Millisecond

// redirection reads the redirection in the reply to p, if there is one.
func (b *backend) redirection(p *pending, reply []byte) (to upstream.Redirection, ok bool) {
	to, ok = upstream.RedirectionOf(reply, b.primary)
	if ok && p.script {
		ok = upstream.IsClusterError(string(resp.Text(reply)), p.slot)
		if !b.loop.isPrimary(to.Address) {
			to.Address = "" // use the map: the proxy must not log in at an address that a script names
		}
	}
	return to, ok
}

const errMoving = "TRYAGAIN the slot of this command is moving: the command was not run"

// waitingDone records that a command that had to wait for the cluster, or a part of one, is complete.
func (c *client) waitingDone() {
	if c.waiting--; c.waiting == 0 {
		c.commandDone()
	}
}
