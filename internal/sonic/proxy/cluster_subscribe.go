package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// In front of a Redis Cluster connections with subscriptions use RESP3, whatever their client uses:
// pushes and replies then differ. HELLO follows each command, since Redis answers SUBSCRIBE and the
// commands like it by pushes only, and UNSUBSCRIBE by as many as there are channels.

// endMark returns the command whose reply marks the end of the replies to a command: the only map
// among them. PING would not do. Redis refuses it while it cannot write to its disk, for instance.
func endMark() []byte { return resp.AppendCommand(nil, "HELLO", "3") }

// subscribeInCluster runs SUBSCRIBE, PSUBSCRIBE and the commands that end them. All nodes of a
// cluster have all messages, so that any primary will do.
func (c *client) subscribeInCluster(cmd *command.Command, r request.Request) bool {
	if c.outstanding > 0 {
		return false
	}
	c.beginSubscriptions()
	raw := bytes.Clone(r.Raw)
	return c.runOwn(&ownCommand{slot: noSlot, send: func(o *ownCommand, _ string, _ bool) {
		own := c.own
		if own.channels == nil || own.channels.state == discarded {
			b := c.openOwn(c.loop.keylessPrimary(), 3)
			b.onPush = c.channelPush
			b.onEnd = func() {
				own.channels = nil
				if len(c.subs.channels)+len(c.subs.patterns) > 0 {
					c.disconnect()
				}
			}
			own.channels = b
		}
		o.b = own.channels
		o.sendMarked(raw)
	}})
}

func (c *client) beginSubscriptions() {
	if c.subs == nil {
		c.subs = &subscriptions{channels: map[string]struct{}{}, patterns: map[string]struct{}{}, shards: map[string]struct{}{}}
	}
}

// sendMarked sends a client's command of subscriptions.
func (o *ownCommand) sendMarked(raw []byte) {
	o.marked = sendMarked(o.b, raw, func(refusal []byte) {
		if refusal != nil {
			o.arrived(refusal)
		} else {
			o.end(nil) // the pushes were the answer
		}
	}, o.lost)
}

// sendMarked sends a command of subscriptions and its end mark. done gets the error that Redis
// answers, nil if there is none.
func sendMarked(b *backend, raw []byte, done func(refusal []byte), lost func(sent bool)) *replyHandler {
	var refusal []byte
	then := &replyHandler{replies: 2, endMark: true, onLost: lost, onReply: func(reply []byte) {
		if reply[0] != '%' {
			refusal = bytes.Clone(reply)
		} else {
			done(refusal)
		}
	}}
	b.send(pending{kind: handled, then: then}, append(bytes.Clone(raw), endMark()...))
	return then
}

// channelPush handles a push of the connection of channels and patterns.
func (c *client) channelPush(push []byte) {
	if replies.IsMessage(push) {
		c.deliverMessage(push)
		return
	}
	parts, err := resp.Elements(push)
	if err != nil || len(parts) != 3 {
		return
	}
	channel := string(resp.Text(parts[1]))
	switch string(resp.Text(parts[0])) {
	case "subscribe":
		c.subs.channels[channel] = struct{}{}
	case "psubscribe":
		c.subs.patterns[channel] = struct{}{}
	case "unsubscribe":
		delete(c.subs.channels, channel)
	case "punsubscribe":
		delete(c.subs.patterns, channel)
	}
	c.deliver(c.push(parts))
}

// deliverMessage delivers a message of RESP3 in the client's protocol. It changes it.
func (c *client) deliverMessage(push []byte) {
	if bytes.Contains(push, []byte(state.Prefix)) {
		push = replies.PushWithoutStateKeys(push)
	}
	if c.proto == 2 && len(push) > 0 {
		push[0] = '*'
	}
	c.deliver(push)
}

// push returns a push of RESP3 in the client's protocol.
func (c *client) push(parts [][]byte) []byte {
	letter := byte('>')
	if c.proto == 2 {
		letter = '*'
	}
	out := resp.AppendHeader(nil, letter, len(parts))
	for _, part := range parts {
		if c.proto == 2 && part[0] == '_' { // no channel is left
			part = []byte("$-1\r\n")
		}
		out = append(out, part...)
	}
	return out
}

// pingWhileSubscribed returns what Redis answers a client of RESP2 with subscriptions.
func pingWhileSubscribed(r request.Request) []byte {
	var text []byte
	if r.Len() == 2 {
		text = r.Arg(1)
	}
	return resp.AppendBulk(resp.AppendBulk(resp.AppendHeader(nil, '*', 2), "pong"), text)
}
