package proxy

import (
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// State keys are in db 0. The proxy hides them in the replies of commands that list or count all
// keys.

// relayWithoutStateKeys relays a command, and removes state keys from its reply.
func (c *client) relayWithoutStateKeys(cmd *command.Command, r request.Request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	return c.relayFiltered(cmd, r)
}

// relayFiltered relays a command, and applies filterReply to its reply.
func (c *client) relayFiltered(cmd *command.Command, r request.Request) bool {
	b, ok := c.connection()
	if !ok {
		return false
	}
	b.send(pending{client: c, kind: handled, then: &replyHandler{onReply: func(reply []byte) {
		c.deliver(c.loop.proxy.filterReply(cmd, reply, c, c.db))
	}}}, r.Raw)
	return true
}

// dbSize runs DBSIZE without state keys.
func (c *client) dbSize(cmd *command.Command, r request.Request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	if c.loop.cfg.SlotOutboxes {
		return c.dbSizeOfAll(r.Raw)
	}
	r.Raw = c.loop.proxy.dbSize
	return c.relay(cmd, r)
}

// randomKeyScript is RANDOMKEY without state keys. A database that has hardly any other keys is small
// enough to be searched.
const randomKeyScript = `for _ = 1, 100 do
	local key = redis.call('RANDOMKEY')
	if not key or string.sub(key, 1, 7) ~= '{sonic:' then return key end
end
local cursor = '0'
repeat
	local found = redis.call('SCAN', cursor, 'COUNT', '1000')
	cursor = found[1]
	for _, key in ipairs(found[2]) do
		if string.sub(key, 1, 7) ~= '{sonic:' and redis.call('EXISTS', key) == 1 then return key end
	end
until cursor == '0'
return false`

func (c *client) randomKey(cmd *command.Command, r request.Request) bool {
	if c.db == 0 {
		r.Raw = c.loop.proxy.randomKey
	}
	return c.relay(cmd, r)
}

// filterReply makes of the reply to a command that ran in db what clients may see: it has no state
// keys, no passwords of Redis and not Sonic's library, and INFO counts the clients of this Sonic.
func (p *Proxy) filterReply(cmd *command.Command, reply []byte, c *client, db int) []byte {
	switch cmd.Name {
	case "config|get":
		if p.cfg.Cluster != nil {
			reply = replies.ConfigWithoutCluster(reply)
		}
		return replies.WithoutPasswords(reply)
	case "function|list":
		return replies.WithoutSonic(reply)
	case "info":
		if p.cfg.Cluster != nil {
			reply = replies.InfoWithoutCluster(reply)
		}
		return replies.WithClients(reply, p.clients.Load(), c.loop.blocked)
	}
	if db != 0 || len(reply) == 0 || reply[0] == '-' {
		return reply
	}
	switch cmd.Name {
	case "keys":
		return replies.WithoutStateKeys(reply)
	case "scan":
		elements := resp.Elements(reply)
		if len(elements) != 2 {
			return reply
		}
		out := resp.AppendHeader(nil, '*', 2)
		out = append(out, elements[0]...)
		return append(out, replies.WithoutStateKeys(elements[1])...)
	}
	return reply
}
