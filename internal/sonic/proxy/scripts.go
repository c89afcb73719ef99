package proxy

import (
	"bytes"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// script runs EVAL, EVALSHA and FCALL of a user. Functions that stand before and behind it in one MULTI note the state of
// the keys that it declares. Writes to other keys cannot be seen.
func (c *client) script(cmd *command.Command, r request) bool {
	n, problem := c.l.p.declaredKeys(cmd, r)
	switch {
	case problem != "":
		c.replyError(problem)
		return true
	case n == 0:
		return c.relay(cmd, r) // without keys, or an error
	}
	if !c.writable() {
		return c.refusedWrite()
	}
	b, ok := c.home()
	if !ok {
		return false
	}
	aside := c.watch // the EXEC below would end the client's WATCH
	if aside {
		if c.outstanding > 0 {
			return false
		}
		b = c.l.connection(c.db, c.proto)
	}
	if !b.fenced {
		return c.passFence(b)
	}
	p := c.l.p
	first, last := r.args[2].End+2, r.args[2+n].End+2
	declared := r.raw[first:last]
	if countedSize(len(r.raw), r.len())+2*countedSize(len(declared), n) > p.query.Load()-queryRest {
		c.replyError("ERR Sonic refuses '" + cmd.Name + "' with its keys of " + strconv.Itoa(len(declared)) +
			" bytes: Redis would end the connection that all clients share")
		return true
	}
	tx := "t" + p.newTx()
	flags := c.modeIn(c.db, "")
	var out []byte
	out = resp.AppendCommand(out, "MULTI")
	out = appendKeys(out, p.markKeys, flags, n, declared)
	out = append(out, r.raw...)
	out = appendKeys(out, p.shipKeys, c.modeIn(c.db, tx), n, declared)
	out = resp.AppendHeader(out, '*', 5)
	out = append(out, p.closeTx...)
	out = append(out, c.modeIn(c.db, tx)...)
	out = resp.AppendCommand(out, "EXEC")
	const replies = 6
	seen := 0
	var refusal []byte
	then := &handling{replies: replies, here: true}
	if aside {
		c.busy = true // its replies come from two connections
		then.lost = c.lostCommand
	}
	then.each = func(reply []byte) {
		if seen++; seen < replies {
			if reply[0] == '-' && refusal == nil {
				refusal = bytes.Clone(reply) // BUSY, for one: EXEC says only that there was an error before
			}
			return
		}
		if refusal != nil {
			reply = refusal
		}
		answer, id, fenced := p.unwrapScript(cmd, reply)
		b.fenced = b.fenced && fenced
		if aside {
			c.proceed()
		}
		c.deliverPublished(id, answer)
	}
	b.send(pending{client: c, kind: handled, then: then}, out)
	return true
}

// passFence asks whether a Sonic has opened this Redis: a function refuses to run when none has, but a script of a user
// would run. The answer holds as long as the connection: a Redis that restarts ends it. It returns false: the script is
// executed anew once the answer is there.
func (c *client) passFence(b *backend) bool {
	if problem := c.refused; problem != "" {
		c.refused = ""
		c.replyError(problem)
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
			switch {
			case b.fenced:
			case bytes.HasPrefix(reply, []byte("-MISCONF ")):
				c.refused = script.ErrorOf(string(resp.Text(reply)))
			default:
				c.refused = errNotOpened
			}
			c.proceed()
		},
		lost: func(bool) {
			c.refused = errNotOpened
			c.proceed()
		},
	}}, ask)
	return false
}

// unwrapScript returns the script's own reply of what EXEC gave, and the id of its effect. fenced is false when it is not known that the library is open.
func (p *Proxy) unwrapScript(cmd *command.Command, reply []byte) (answer, id []byte, fenced bool) {
	given, err := resp.Elements(reply)
	if err != nil || len(given) != 4 {
		return reply, nil, true // an error
	}
	answer = p.unwrapNoted(cmd, given[0], given[1], given[2])
	return answer, resp.Text(given[3]), noted(given[0], given[2])
}

// noted reports whether both functions around a script have run.
func noted(mark, ship []byte) bool { return mark[0] != '-' && ship[0] != '-' }

// unwrapNoted returns a script's own reply of those to it and to the functions around it.
func (p *Proxy) unwrapNoted(cmd *command.Command, mark, reply, ship []byte) []byte {
	if noted(mark, ship) {
		return reply
	}
	// The library was loaded anew since the fence was passed: by another version of Sonic, or by the former primary's successor.
	p.log.Error("a script ran while no Sonic had opened this Redis: what it wrote is in this zone only", zap.String("command", cmd.Name))
	return resp.AppendError(nil, errUnnoted)
}

// appendKeys appends the call of a function with the keys that a script declares, which are bulk strings.
func appendKeys(out, function, mode []byte, n int, declared []byte) []byte {
	out = resp.AppendHeader(out, '*', n+5)
	out = append(out, function...)
	out = append(out, mode...)
	return append(out, declared...)
}

// declaredKeys returns how many keys a script declares: 0 when it has none, or when Redis refuses it. problem is the error of one that may not run.
func (p *Proxy) declaredKeys(cmd *command.Command, r request) (n int, problem string) {
	number, ok := resp.ParseInt(r.arg(2))
	if !ok || number <= 0 || number > int64(r.len()-3) {
		return 0, ""
	}
	for i := 3; i < 3+int(number); i++ {
		if p.cfg.Counter != nil && p.cfg.Counter(r.arg(i)) {
			return 0, "SONICREFUSED " + strings.ToUpper(cmd.Name) + " is not for counter keys: what a script adds to them cannot be seen"
		}
	}
	return int(number), ""
}

// aboutLibrary returns the error of a command that would call, replace or delete Sonic's own library.
func aboutLibrary(cmd *command.Command, r request) string {
	switch cmd.Name {
	case "fcall", "fcall_ro":
		if bytes.HasPrefix(bytes.ToLower(r.arg(1)), []byte("sonic_")) {
			return "ERR Function not found"
		}
	case "function|delete":
		if resp.EqualFold(r.arg(2), "sonic") {
			return "ERR Library not found"
		}
	case "function|load":
		header, _, _ := bytes.Cut(r.arg(r.len()-1), []byte("\n"))
		words, _ := resp.Words(header) // as Redis reads it; without balanced quotes it refuses it
		for _, word := range words {
			if resp.EqualFold(word, "name=sonic") {
				return "ERR Sonic refuses 'function|load' of a library that is named as its own"
			}
		}
	}
	return ""
}

// sort relays SORT, GEORADIUS and GEORADIUSBYMEMBER, which are writes only with STORE or STOREDIST.
func (c *client) sort(cmd *command.Command, r request) bool {
	if stores(cmd, r) {
		return c.write(cmd, r)
	}
	return c.relay(cmd, r)
}

// stores reports whether a command that writes only with STORE or STOREDIST may have it: SORT, GEORADIUS or GEORADIUSBYMEMBER.
func stores(cmd *command.Command, r request) bool {
	first := 4
	if cmd.Name == "sort" {
		first = 2
	}
	for i := first; i < r.len(); i++ {
		if resp.EqualFold(r.arg(i), "store") || first > 2 && resp.EqualFold(r.arg(i), "storedist") {
			return true
		}
	}
	return false
}

// writesBy reports whether the command runs as a function.
func (p *Proxy) writesBy(cmd *command.Command, r request) bool {
	switch cmd.Class {
	case command.Write:
		switch cmd.Name {
		case "sort", "georadius", "georadiusbymember":
			return stores(cmd, r)
		}
		return true
	case command.Blocking:
		return true
	default:
		return p.replicates(cmd)
	}
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
	_, blocks := command.Streams(r.raw, r.args)
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
