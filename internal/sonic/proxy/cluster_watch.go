package proxy

import (
	"bytes"
	"slices"
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// In front of a Redis Cluster WATCH and the EXEC after it go by a connection of the client's own, to
// the primary of the slot of the keys. Commands between them go by shared connections: they see what
// WATCH sees, because they are sent only after Redis has answered WATCH. A pipelined client waits for
// that one round trip. Its own writes are answered before EXEC is sent.

// watchInCluster runs WATCH.
func (c *client) watchInCluster(_ *command.Command, r request.Request) bool {
	switch {
	case c.tx != nil:
		return c.replyError("ERR WATCH inside MULTI is not allowed")
	case c.watch && c.own.watched != c.slot:
		return c.replyError(errCrossSlot)
	case c.outstanding > 0:
		return false
	case c.watch && c.own.watch == nil: // EXEC will say that a key has changed
		return c.replyOK()
	}
	raw := bytes.Clone(r.Raw)
	var keys []string
	for i := 1; i < r.Len(); i++ {
		keys = append(keys, string(r.Arg(i)))
	}
	o := &ownCommand{slot: c.slot, repeats: true}
	o.send = func(o *ownCommand, address string, _ bool) {
		own := c.own
		b := own.watch
		if !c.watch {
			b, _ = c.reuse(own.watch, address, func(b *backend) {
				if own.watch == b {
					own.watch = nil
				}
			})
		}
		o.b, own.watch = b, b
		b.send(pending{kind: handled, then: &replyHandler{
			onReply: func(reply []byte) {
				if reply[0] == '+' {
					c.watch, own.watched = true, o.slot
					own.addKeys(keys)
				}
				o.arrived(reply)
			},
			onLost: o.lost,
		}}, raw)
	}
	if c.watch { // what it watches since an earlier WATCH has moved: EXEC will say that a key has changed
		o.broken = func(o *ownCommand) {
			if b := c.own.watch; b != nil {
				c.own.watch = nil
				b.discard()
			}
			o.end([]byte(replyOK))
		}
	}
	return c.runOwn(o)
}

// addKeys adds keys to the watched ones.
func (o *ownConnections) addKeys(keys []string) {
	if o.keys == nil {
		o.keys = map[string]struct{}{}
	}
	for _, key := range keys {
		o.keys[key] = struct{}{}
	}
}

// watchedSlot returns the slot of the keys that the client watches, noSlot if it watches none.
func (c *client) watchedSlot() int {
	if c.watch && c.own != nil {
		return c.own.watched
	}
	return noSlot
}

// endWatch ends WATCH.
func (c *client) endWatch() {
	if !c.watch {
		return
	}
	c.watch = false
	b := c.backend
	if c.loop.slots != nil {
		b, c.own.keys = c.own.watch, nil
	}
	if b != nil {
		b.send(discardReply(), resp.AppendCommand(nil, "UNWATCH"))
	}
}

// execWatched runs EXEC of a client that watches keys. Their slot may have moved since: then the
// answer is that a key has changed, so that the client tries again.
func (c *client) execWatched(tx *transaction) bool {
	if c.outstanding > 0 {
		return false
	}
	b, bound := c.own.watch, c.boundToOpened(tx)
	if bound && b != nil && !b.opened {
		return c.checkOpened(b)
	}
	keys := c.own.keys
	c.tx, c.watch, c.own.keys = nil, false, nil
	if b == nil {
		return c.reply(nullArray(c.proto))
	}
	run := c.prepare(tx)
	run.slot, run.watched, run.connectionBound = tx.slot, true, bound
	run.checkKeys(keys)
	c.busy = true // the next command may go by another connection
	run.send(b, nil)
	return true
}

// checkKeys makes the transaction begin with EXISTS of the watched keys. Redis then redirects it if
// it no longer has one of them, whatever keys the transaction itself uses: that key may have changed
// where it is now. EXEC checks it again, in the same step as it executes the commands.
func (e *execution) checkKeys(keys map[string]struct{}) {
	exists := resp.AppendHeader(nil, '*', len(keys)+1)
	exists = resp.AppendBulk(exists, "EXISTS")
	for key := range keys {
		exists = resp.AppendBulk(exists, key)
	}
	e.out = slices.Insert(e.out, len(resp.AppendCommand(nil, "MULTI")), exists...)
	e.sent++
}

// changeWatchProtocol makes Redis answer EXEC in the client's protocol.
func (c *client) changeWatchProtocol() {
	if c.own == nil || c.own.watch == nil || c.own.watch.proto == c.proto {
		return
	}
	b := c.own.watch
	b.proto = c.proto
	b.send(discardReply(), resp.AppendCommand(nil, "HELLO", strconv.Itoa(c.proto)))
}

// moveWatchers makes commands that wait for keys wait at the primaries that have them now.
func (l *loop) moveWatchers() {
	var moved []*blockedCommand // those that wait for the same key in order of arrival
	for key, w := range l.watchers {
		gone := !l.isPrimary(key.primary)
		for _, all := range w.commands {
			for _, one := range all {
				if gone || l.slots.Owner(one.slot) != key.primary {
					moved = append(moved, one)
				}
			}
		}
		if gone {
			delete(l.watchers, key)
			w.b.failAll()
			w.b.discard()
		}
	}
	for _, one := range moved { // the second time for another key is harmless
		if !one.ended {
			one.onKeyChange()
		}
	}
}
