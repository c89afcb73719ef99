package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// part is a command that the proxy sends as a part of a client's command.
type part struct {
	slot    int    // of its keys, or noSlot
	primary string // with noSlot: the address of the primary that it goes to
	command []byte
	reads   bool // as in pending
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
	order := c.replies.add()
	order.parts = 1 // until all parts are sent
	replies, left := make([][]byte, len(parts)), len(parts)
	arrived := func(i int, reply []byte) {
		replies[i] = bytes.Clone(reply)
		if left--; left == 0 {
			c.replies.current = order
			c.deliver(join(replies))
		}
	}
	for i := range parts {
		p := &parts[i]
		b := l.primaryOf(p.slot, c.proto)
		if p.primary != "" {
			b = l.connectionTo(p.primary, 0, c.proto)
		}
		c.backend, c.slot = b, p.slot
		then := &replyHandler{
			connectionBound: p.primary != "",
			onReply:         func(reply []byte) { arrived(i, reply) },
			onLost: func(sent bool) {
				text := errPrimaryUnreachable
				if sent {
					l.proxy.metrics.unknownOutcome.Inc()
					text = errUnknownOutcome
				}
				arrived(i, resp.AppendError(nil, text))
			},
		}
		b.send(pending{client: c, order: order, kind: handled, then: then, reads: p.reads}, p.command)
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

// ofAllPrimaries reports whether a command concerns all primaries of a Redis Cluster.
func ofAllPrimaries(cmd *command.Command) bool {
	switch cmd.Name {
	case "scan", "keys", "dbsize", "randomkey", "flushall", "flushdb", "script|load", "script|flush", "script|exists",
		"function|load", "function|delete", "function|flush", "pubsub|channels", "pubsub|numsub", "pubsub|numpat", "pubsub|shardchannels", "pubsub|shardnumsub":
		return true
	default:
		return false
	}
}
