package proxy

import (
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// State keys are in db 0. The proxy hides them in the replies of commands that list or count all
// keys.

// relayWithoutStateKeys relays a command, and removes state keys from its reply.
func (c *client) relayWithoutStateKeys(cmd *command.Command, r request.Request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	b, ok := c.connection()
	if !ok {
		return false
	}
	b.send(pending{client: c, kind: handled, then: &replyHandler{onReply: func(reply []byte) {
		c.deliver(c.loop.proxy.filterReply(cmd, reply, c, c.db))
	}}}, r.Raw)
	return true
}

func (c *client) scan(cmd *command.Command, r request.Request) bool {
	return c.relayWithoutStateKeys(cmd, r)
}

func (c *client) keys(cmd *command.Command, r request.Request) bool {
	return c.relayWithoutStateKeys(cmd, r)
}

// dbSize also asks for the number of state keys, which filterReply subtracts.
func (c *client) dbSize(cmd *command.Command, r request.Request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	b, ok := c.connection()
	if !ok {
		return false
	}
	count := c.discardReply()
	count.then.onReply = c.storeStateKeyCount
	b.send(count, c.loop.proxy.countState)
	return c.relayWithoutStateKeys(cmd, r)
}

// storeStateKeyCount stores the number in the reply to countState.
func (c *client) storeStateKeyCount(reply []byte) {
	if n, ok := resp.ParseInt(resp.Text(reply)); ok {
		c.loop.stateKeyCount = n
	}
}

// randomKeyTries bounds how often the proxy sends RANDOMKEY if the reply is a state key.
const randomKeyTries = 100

func (c *client) randomKey(cmd *command.Command, r request.Request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	if c.outstanding > 0 {
		return false
	}
	b, ok := c.connection()
	if !ok {
		return false
	}
	c.busy = true
	c.askRandomKey(b, append([]byte(nil), r.Raw...), randomKeyTries)
	return true
}

func (c *client) askRandomKey(b *backend, raw []byte, tries int) {
	b.send(pending{client: c, kind: handled, then: &replyHandler{
		onReply: func(reply []byte) {
			if state.IsKey(resp.Text(reply)) {
				if tries > 1 && !c.closed {
					c.askRandomKey(b, raw, tries-1)
					return
				}
				reply = replies.Null(c.proto)
			}
			c.commandDone()
			c.deliver(reply)
		},
		onLost: c.lostCommand,
	}}, raw)
}

// commandDone allows the next command to begin.
func (c *client) commandDone() {
	c.busy = false
	c.enqueue()
}

// lostCommand answers a command with an error because its connection was lost.
func (c *client) lostCommand(sent bool) {
	c.commandDone()
	text := errUnreachable
	if sent {
		c.loop.proxy.metrics.unknownOutcome.Inc()
		text = errUnknownOutcome
	}
	c.deliver(resp.AppendError(nil, text))
}

// filterReply removes state keys, and passwords of Redis, from the reply to a command that ran in
// db.
func (p *Proxy) filterReply(cmd *command.Command, reply []byte, c *client, db int) []byte {
	if cmd.Name == "config|get" {
		return replies.WithoutPasswords(reply)
	}
	if db != 0 || len(reply) == 0 || reply[0] == '-' {
		return reply
	}
	switch cmd.Name {
	case "keys":
		return replies.WithoutStateKeys(reply)
	case "scan":
		parts, err := resp.Elements(reply)
		if err != nil || len(parts) != 2 {
			return reply
		}
		out := resp.AppendHeader(nil, '*', 2)
		out = append(out, parts[0]...)
		return append(out, replies.WithoutStateKeys(parts[1])...)
	case "dbsize":
		if n, ok := resp.ParseInt(resp.Text(reply)); ok {
			return resp.AppendHeader(nil, ':', int(max(0, n-c.loop.stateKeyCount)))
		}
	case "randomkey":
		if state.IsKey(resp.Text(reply)) {
			return replies.Null(c.proto)
		}
	}
	return reply
}

// configGet relays CONFIG GET without the passwords, which are for Sonic and not for clients.
func (c *client) configGet(_ *command.Command, r request.Request) bool {
	b, ok := c.connection()
	if !ok {
		return false
	}
	b.send(pending{client: c, kind: handled, then: &replyHandler{onReply: func(reply []byte) { c.deliver(replies.WithoutPasswords(reply)) }}}, r.Raw)
	return true
}
