package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
)

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

// firstError returns the first error among replies, nil without one.
func firstError(replies [][]byte) []byte {
	for _, reply := range replies {
		if len(reply) > 0 && reply[0] == '-' {
			return reply
		}
	}
	return nil
}
