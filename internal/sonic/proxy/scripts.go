package proxy

import (
	"bytes"
	"strings"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// script runs EVAL, EVALSHA and FCALL of a user. Functions that stand before and behind it in one MULTI note the state of
// the keys that it declares. Writes to other keys cannot be seen.
func (c *client) script(cmd *command.Command, r request) bool {
	if isLibraryCall(cmd, r) {
		c.replyError("ERR Function not found")
		return true
	}
	n, ok := resp.ParseInt(r.arg(2))
	if !ok || n <= 0 || n > int64(r.len()-3) {
		return c.relay(cmd, r) // without keys, or an error
	}
	if !c.writable() {
		return c.refusedWrite()
	}
	b, ok := c.home()
	if !ok {
		return false
	}
	if !b.fenced {
		return c.passFence(b)
	}
	p := c.l.p
	first, last := r.args[2].End+2, r.args[2+n].End+2
	declared := r.raw[first:last]
	tx := "t" + p.newTx()
	flags := c.modeIn(c.db, "")
	var out []byte
	out = resp.AppendCommand(out, "MULTI")
	out = resp.AppendHeader(out, '*', int(n)+5)
	out = append(out, p.markKeys...)
	out = append(out, flags...)
	out = append(out, declared...)
	out = append(out, r.raw...)
	out = resp.AppendHeader(out, '*', int(n)+5)
	out = append(out, p.shipKeys...)
	out = append(out, c.modeIn(c.db, tx)...)
	out = append(out, declared...)
	out = resp.AppendHeader(out, '*', 5)
	out = append(out, p.closeTx...)
	out = append(out, c.modeIn(c.db, tx)...)
	out = resp.AppendCommand(out, "EXEC")
	const replies = 6
	seen := 0
	b.send(pending{client: c, kind: handled, then: &handling{replies: replies, here: true, each: func(reply []byte) {
		if seen++; seen < replies {
			return
		}
		answer, id := p.unwrapScript(cmd, reply)
		if ranUnnoted(reply) {
			// The library was loaded anew since the fence was passed: by another version of Sonic, or by the former primary's successor.
			b.fenced = false
			c.l.log.Error("a script ran while no Sonic had opened this Redis: what it wrote is in this zone only", zap.String("command", cmd.Name))
			answer = resp.AppendError(nil, errUnnoted)
		}
		c.deliverPublished(id, answer)
	}}}, out)
	return true
}

// passFence asks whether a Sonic has opened this Redis: a function refuses to run when none has, but a script of a user
// would run. The answer holds as long as the connection: a Redis that restarts ends it. It returns false: the script is
// executed anew once the answer is there.
func (c *client) passFence(b *backend) bool {
	if c.refused {
		c.refused = false
		c.replyError(errNotOpened)
		return true
	}
	if c.outstanding > 0 {
		return false
	}
	c.busy = true
	ask := resp.AppendHeader(nil, '*', 5)
	ask = append(ask, c.l.p.closeTx...) // without a transaction it does nothing
	ask = append(ask, c.modeIn(c.db, "")...)
	b.send(pending{kind: handled, then: &handling{
		each: func(reply []byte) {
			b.fenced = reply[0] != '-'
			c.refused = !b.fenced
			c.proceed()
		},
		lost: func(bool) {
			c.refused = true
			c.proceed()
		},
	}}, ask)
	return false
}

// ranUnnoted reports whether EXEC ran a script whose keys the library refused to ship.
func ranUnnoted(reply []byte) bool {
	given, err := resp.Elements(reply)
	return err == nil && len(given) == 4 && given[0][0] == '-' && given[1][0] != '-'
}

// unwrapScript returns the script's own reply of what EXEC gave, and the id of its effect.
func (p *Proxy) unwrapScript(cmd *command.Command, reply []byte) (answer, id []byte) {
	given, err := resp.Elements(reply)
	if err != nil || len(given) != 4 {
		return reply, nil // an error
	}
	if given[0][0] == '-' {
		return p.mend(cmd, false, given[0], 2), nil
	}
	return given[1], resp.Text(given[3])
}

// isLibraryCall reports whether a client calls a function of Sonic's own library.
func isLibraryCall(cmd *command.Command, r request) bool {
	return (cmd.Name == "fcall" || cmd.Name == "fcall_ro") && bytes.HasPrefix(bytes.ToLower(r.arg(1)), []byte("sonic_"))
}

func (c *client) callReadOnly(cmd *command.Command, r request) bool {
	if isLibraryCall(cmd, r) {
		c.replyError("ERR Function not found")
		return true
	}
	return c.relay(cmd, r)
}

// functionLoad loads a user's library, into this zone only.
func (c *client) functionLoad(cmd *command.Command, r request) bool {
	header, _, _ := strings.Cut(string(r.arg(r.len()-1)), "\n")
	for word := range strings.FieldsSeq(header) {
		if strings.EqualFold(word, "name=sonic") {
			c.replyError("ERR Sonic refuses 'function|load' of a library that is named as its own")
			return true
		}
	}
	return c.relay(cmd, r)
}

func (c *client) functionDelete(cmd *command.Command, r request) bool {
	if resp.EqualFold(r.arg(2), "sonic") {
		c.replyError("ERR Library not found")
		return true
	}
	return c.relay(cmd, r)
}

// sort relays SORT, which is a write only with STORE.
func (c *client) sort(cmd *command.Command, r request) bool {
	for i := 2; i < r.len(); i++ {
		if resp.EqualFold(r.arg(i), "store") {
			return c.write(cmd, r)
		}
	}
	return c.relay(cmd, r)
}

// geoRadius relays GEORADIUS and GEORADIUSBYMEMBER, which are writes only with STORE or STOREDIST.
func (c *client) geoRadius(cmd *command.Command, r request) bool {
	for i := 4; i < r.len(); i++ {
		if resp.EqualFold(r.arg(i), "store") || resp.EqualFold(r.arg(i), "storedist") {
			return c.write(cmd, r)
		}
	}
	return c.relay(cmd, r)
}

func (p *Proxy) replicates(cmd *command.Command) bool { return p.cfg.Publish && cmd.Name == "publish" }

func (c *client) publish(cmd *command.Command, r request) bool {
	if c.l.p.replicates(cmd) {
		return c.write(cmd, r)
	}
	return c.relay(cmd, r)
}

// readStreams relays XREAD and XREADGROUP. One that waits needs a connection of its own.
func (c *client) readStreams(cmd *command.Command, r request) bool {
	blocks := false
	for i := 1; i < r.len() && !resp.EqualFold(r.arg(i), "streams"); i++ {
		blocks = blocks || resp.EqualFold(r.arg(i), "block")
	}
	if !blocks {
		return c.relay(cmd, r)
	}
	if !c.takeOwn() {
		return false
	}
	c.blocking++
	ended := func() { c.blocking-- }
	c.b.send(pending{client: c, kind: handled, then: &handling{
		each: func(reply []byte) { ended(); c.deliver(reply) },
		lost: func(sent bool) { ended(); c.lostCommand(sent) },
	}}, r.raw)
	return true
}
