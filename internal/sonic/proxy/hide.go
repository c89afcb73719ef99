package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// State keys are in db 0. Clients do not see them in what names or counts all keys.

// hiding relays a command and hides state keys in its reply.
func (c *client) hiding(cmd *command.Command, r request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	b, ok := c.home()
	if !ok {
		return false
	}
	b.send(pending{client: c, kind: handled, then: &handling{each: func(reply []byte) {
		c.deliver(c.l.p.hideIn(cmd, reply, c, c.db))
	}}}, r.raw)
	return true
}

func (c *client) scan(cmd *command.Command, r request) bool { return c.hiding(cmd, r) }

func (c *client) keys(cmd *command.Command, r request) bool { return c.hiding(cmd, r) }

// dbSize asks how many state keys there are, too.
func (c *client) dbSize(cmd *command.Command, r request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	b, ok := c.home()
	if !ok {
		return false
	}
	count := c.swallow()
	count.then.each = c.noteStateKeys
	b.send(count, c.l.p.countState)
	return c.hiding(cmd, r)
}

// noteStateKeys takes the reply of countState.
func (c *client) noteStateKeys(reply []byte) {
	if n, ok := resp.ParseInt(resp.Text(reply)); ok {
		c.l.stateKeys = n
	}
}

// randomKeyTries bounds how often RANDOMKEY is asked again when it names a state key.
const randomKeyTries = 100

func (c *client) randomKey(cmd *command.Command, r request) bool {
	if c.db != 0 {
		return c.relay(cmd, r)
	}
	if c.outstanding > 0 {
		return false
	}
	b, ok := c.home()
	if !ok {
		return false
	}
	c.busy = true
	c.askRandomKey(b, append([]byte(nil), r.raw...), randomKeyTries)
	return true
}

func (c *client) askRandomKey(b *backend, raw []byte, tries int) {
	b.send(pending{client: c, kind: handled, then: &handling{
		each: func(reply []byte) {
			if isState(resp.Text(reply)) {
				if tries > 1 && !c.closed {
					c.askRandomKey(b, raw, tries-1)
					return
				}
				reply = nullOf(c.proto)
			}
			c.proceed()
			c.deliver(reply)
		},
		lost: c.lostCommand,
	}}, raw)
}

// proceed lets the next command begin.
func (c *client) proceed() {
	c.busy = false
	c.enqueue()
}

// lostCommand answers a command whose connection was lost.
func (c *client) lostCommand(sent bool) {
	c.proceed()
	text := errUnreachable
	if sent {
		c.l.p.metrics.unknown.Inc()
		text = errUnknownOutcome
	}
	c.deliver(resp.AppendError(nil, text))
}

func nullOf(proto int) []byte {
	if proto == 3 {
		return []byte(null3)
	}
	return []byte(nullBulk)
}

// hideIn leaves state keys, and passwords of Redis, out of the reply to a command that ran in db.
func (p *Proxy) hideIn(cmd *command.Command, reply []byte, c *client, db int) []byte {
	if cmd.Name == "config|get" {
		return withoutPasswords(reply)
	}
	if db != 0 || len(reply) == 0 || reply[0] == '-' {
		return reply
	}
	switch cmd.Name {
	case "keys":
		return withoutState(reply)
	case "scan":
		parts, err := resp.Elements(reply)
		if err != nil || len(parts) != 2 {
			return reply
		}
		out := resp.AppendHeader(nil, '*', 2)
		out = append(out, parts[0]...)
		return append(out, withoutState(parts[1])...)
	case "dbsize":
		if n, ok := resp.ParseInt(resp.Text(reply)); ok {
			return resp.AppendHeader(nil, ':', int(max(0, n-c.l.stateKeys)))
		}
	case "randomkey":
		if isState(resp.Text(reply)) {
			return nullOf(c.proto)
		}
	}
	return reply
}

func withoutState(list []byte) []byte {
	if !bytes.Contains(list, []byte(statePrefix)) {
		return list
	}
	all, err := resp.Elements(list)
	if err != nil {
		return list
	}
	kept, size := all[:0], 0
	for _, e := range all {
		if !isState(resp.Text(e)) {
			kept = append(kept, e)
			size += len(e)
		}
	}
	out := resp.AppendHeader(make([]byte, 0, size+16), list[0], len(kept))
	for _, e := range kept {
		out = append(out, e...)
	}
	return out
}

// stateCount is the command that counts state keys.
func (p *Proxy) stateCount() []byte {
	words := []string{"EXISTS", outKey}
	for _, name := range []string{"ver", "cur", "meta", "told", "want", "owe", "boot", "unsent"} {
		words = append(words, "{sonic:0}"+name)
	}
	for _, zone := range p.cfg.Zones {
		words = append(words, "{sonic:0}part:"+zone)
	}
	return resp.AppendCommand(nil, words...)
}
