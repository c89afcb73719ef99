package proxy

import (
	"bytes"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// script runs EVAL, EVALSHA and FCALL of a user as a transaction of its own, between two functions
// that record the state of the keys that the script declares. Writes to other keys are not
// replicated.
func (c *client) script(cmd *command.Command, r request.Request) bool {
	n, problem := c.loop.proxy.declaredKeys(cmd, r)
	switch {
	case problem != "":
		return c.replyError(problem)
	case n == 0 && !c.loop.proxy.mayPublish(cmd, r):
		return c.relay(cmd, r) // it declares no keys, or Redis will refuse it
	}
	if !c.writable() {
		return c.delayOrRefuseWrite()
	}
	b, ok := c.connection()
	if !ok {
		return false
	}
	aside := c.watch && c.loop.slots == nil // use a shared connection: the EXEC below would end the client's WATCH
	if aside {
		if c.outstanding > 0 {
			return false
		}
		b = c.loop.connection(c.db, c.proto)
	}
	if !b.opened {
		return c.checkOpened(b)
	}
	first, last := r.Args[2].End+2, r.Args[2+n].End+2
	if problem := c.loop.proxy.tooLargeScript(cmd, r, r.Raw[first:last], n); problem != "" {
		return c.replyError(problem)
	}
	run := c.prepare(&transaction{
		commands: []queuedCommand{{cmd: cmd, end: len(r.Raw), recorded: true, keys: n, keysStart: first, keysEnd: last, script: r.Script}},
		raw:      r.Raw, slot: c.slot,
	})
	run.slot, run.script, run.connectionBound = c.slot, true, true
	c.busy = aside // its replies come from two connections, so the next command must wait
	run.send(b, nil)
	return true
}

// tooLargeScript returns the error for a script with n declared keys that is too large; "" for others.
func (p *Proxy) tooLargeScript(cmd *command.Command, r request.Request, declared []byte, n int) string {
	if countedSize(len(r.Raw), r.Len())+2*countedSize(len(declared), n) <= p.dialer.TransactionBytes() {
		return ""
	}
	return "ERR Sonic refuses '" + cmd.Name + "' with keys of " + strconv.Itoa(len(declared)) +
		" bytes: Redis would close the connection that all clients share"
}

// checkOpened asks whether a Sonic has opened this Redis. If none has, a function refuses to run,
// but a user's script would run. The answer is valid as long as the connection, because a restart
// of Redis ends it. checkOpened returns false, and the proxy executes the script again after the
// answer.
func (c *client) checkOpened(b *backend) bool {
	if problem := c.scriptRefusal; problem != "" {
		c.scriptRefusal = ""
		if c.tx != nil {
			return c.abortTx("EXECABORT Transaction discarded because of: " + problem)
		}
		return c.replyError(problem)
	}
	if c.outstanding > 0 {
		return false
	}
	c.busy = true
	b.askOpened(func(problem string) {
		if problem == replies.NotOpenedError && c.loop.cfg.SlotOutboxes && c.awaitOpened() {
			return
		}
		c.openSince = time.Time{}
		c.scriptRefusal = problem
		c.commandDone()
	})
	return false
}

// awaitOpened asks again after a pause. It returns false if the client has waited for Backend.Wait.
func (c *client) awaitOpened() bool {
	l := c.loop
	if c.openSince.IsZero() {
		c.openSince = l.now
	}
	if c.waitedTooLong(c.openSince) {
		return false
	}
	l.cfg.Cluster.Refresh()
	l.timers.Start(l.now.Add(clusterPause), c.commandDone)
	return true
}

// askOpened asks whether a Sonic has opened this Redis, and notes it. problem is why scripts may not
// run, "" if they may.
func (b *backend) askOpened(done func(problem string)) {
	p := b.loop.proxy
	ask := resp.AppendHeader(nil, '*', 5)
	ask = append(ask, p.closeTx...) // without a transaction the call does nothing
	ask = append(ask, resp.AppendBulk(nil, strconv.Itoa(b.db))...)
	if p.cfg.SlotOutboxes {
		ask = resp.AppendCommand(nil, "FCALL", "sonic_primary", "0")
	}
	b.send(pending{kind: handled, then: &replyHandler{
		connectionBound: p.cfg.SlotOutboxes,
		onReply: func(reply []byte) {
			b.opened = reply[0] != '-'
			if p.cfg.SlotOutboxes && b.opened {
				state := resp.Elements(reply)
				b.opened = len(state) > 1 && string(resp.Text(state[1])) == "1"
			}
			switch {
			case b.opened:
				done("")
			case bytes.HasPrefix(reply, []byte("-MISCONF ")):
				done(script.ErrorOf(string(resp.Text(reply))))
			default:
				done(replies.NotOpenedError)
			}
		},
		onLost: func(bool) { done(replies.NotOpenedError) },
	}}, ask)
}

// recorded reports whether both functions around a script have succeeded.
func recorded(mark, ship []byte) bool { return mark[0] != '-' && ship[0] != '-' }

// unwrapRecorded returns a script's reply, or an error if a function around it has failed.
func (p *Proxy) unwrapRecorded(cmd *command.Command, mark, reply, ship []byte) []byte {
	if recorded(mark, ship) {
		return reply
	}
	// The library was replaced since checkOpened: by another version of Sonic, or by the Sonic that
	// opened the new primary.
	p.log.Error("a script ran while no Sonic had opened this Redis: its writes are not replicated to other zones", zap.String("command", cmd.Name))
	return resp.AppendError(nil, errUnrecorded)
}

// declaredKeys returns how many keys a script declares; 0 if it declares none, or if Redis will
// refuse the command. problem is the error for a script that may not run.
func (p *Proxy) declaredKeys(cmd *command.Command, r request.Request) (n int, problem string) {
	number, ok := resp.ParseInt(r.Arg(2))
	if !ok || number <= 0 || number > int64(r.Len()-3) {
		return 0, ""
	}
	for i := 3; i < 3+int(number); i++ {
		if p.cfg.Counter != nil && p.cfg.Counter(r.Arg(i)) {
			return 0, "SONICREFUSED " + strings.ToUpper(cmd.Name) + " is not for counter keys: Sonic cannot record what a script adds to them"
		}
	}
	return int(number), ""
}

// notePublished returns the request for Redis of a command that brings or names a script or a
// library: with a text that notes what it publishes.
func (p *Proxy) notePublished(cmd *command.Command, r request.Request) request.Request {
	switch cmd.Name {
	case "eval", "eval_ro", "script|load":
		i := len(r.Args) - 1
		if cmd.Name != "script|load" {
			i = 1
		}
		if text, script := p.scripts.Text(r.Arg(i)); script != nil {
			r = r.With(i, text)
			r.Script = script
		}
	case "evalsha", "evalsha_ro":
		if script := p.scripts.Named(r.Arg(1)); script != nil {
			r = r.With(1, []byte(script.Redis))
			r.Script = script
		}
	case "script|exists":
		for i := 2; i < r.Len(); i++ {
			if script := p.scripts.Named(r.Arg(i)); script != nil {
				copy(r.Arg(i), script.Redis) // both have 40 digits
			}
		}
	case "function|load":
		last := r.Len() - 1
		if text := publishing.Library(r.Arg(last)); len(text) != len(r.Arg(last)) {
			r = r.With(last, text)
		}
	}
	return r
}

// mayPublish reports whether a script notes what it publishes. Which library a function is of is not
// known.
func (p *Proxy) mayPublish(cmd *command.Command, r request.Request) bool {
	return p.cfg.Publish && (r.Script != nil || cmd.Name == "fcall")
}

// markFlags returns the flags of the mode of sonic_mark: m to have the script note what it publishes.
func (p *Proxy) markFlags() string {
	if p.cfg.Publish {
		return "m"
	}
	return ""
}

// relayScript relays EVAL_RO, EVALSHA_RO and SCRIPT LOAD.
func (c *client) relayScript(cmd *command.Command, r request.Request) bool {
	if r.Script == nil {
		return c.relay(cmd, r)
	}
	b, ok := c.connection()
	if !ok {
		return false
	}
	script := r.Script
	b.send(pending{client: c, kind: handled, then: &replyHandler{onReply: func(reply []byte) { c.deliver(withOwnName(script, reply)) }}}, r.Raw)
	return true
}

// withOwnName replaces Redis' name of a script by the client's in an error, and in the reply to
// SCRIPT LOAD. script is nil if both are equal.
func withOwnName(script *publishing.Script, reply []byte) []byte {
	if script == nil || reply[0] != '-' && string(resp.Text(reply)) != script.Redis {
		return reply
	}
	return script.Rename(reply)
}

// functionFlush runs FUNCTION FLUSH [ASYNC|SYNC]: it deletes each library but Sonic's own, without
// which Redis takes no writes.
func (c *client) functionFlush(_ *command.Command, r request.Request) bool {
	switch {
	case r.Len() > 3:
		return c.replyError("ERR unknown subcommand or wrong number of arguments for '" + string(request.CString(r.Arg(1), 128)) + "'. Try FUNCTION HELP.")
	case r.Len() == 3 && !resp.EqualFold(r.Arg(2), "sync") && !resp.EqualFold(r.Arg(2), "async"):
		return c.replyError("ERR FUNCTION FLUSH only supports SYNC|ASYNC option")
	}
	if c.outstanding > 0 {
		return false
	}
	l := c.loop
	c.busy = true
	c.outstanding++ // so that drain waits for the answer
	finish := func(answer []byte) {
		c.outstanding--
		c.commandDone()
		c.reply(answer)
	}
	l.askPrimaries(resp.AppendCommand(nil, "FUNCTION", "LIST"), func(all [][]byte) {
		names := map[string]struct{}{}
		for _, reply := range all {
			for _, name := range replies.LibraryNames(reply) {
				names[name] = struct{}{}
			}
		}
		answer, left := []byte(replyOK), len(names)
		if problem := replies.FirstError(all); problem != nil {
			answer, left = problem, 0
		}
		if left == 0 || c.closed {
			finish(answer)
			return
		}
		for name := range names {
			l.askPrimaries(resp.AppendCommand(nil, "FUNCTION", "DELETE", name), func(all [][]byte) {
				one := replies.JoinDeletions(all)
				if one[0] == '-' && !bytes.HasPrefix(one, []byte("-ERR Library not found")) { // another client has deleted it
					answer = one
				}
				if left--; left == 0 {
					finish(answer)
				}
			})
		}
	})
	return true
}

// askPrimaries sends a command of the proxy's own to all primaries. done gets their replies, and
// errors for connections that were lost.
func (l *loop) askPrimaries(command []byte, done func(all [][]byte)) {
	all, left := make([][]byte, len(l.firstSlots)), len(l.firstSlots)
	for i, slot := range l.firstSlots {
		arrived := func(reply []byte) {
			all[i] = bytes.Clone(reply)
			if left--; left == 0 {
				done(all)
			}
		}
		l.primaryOf(slot, 2).send(pending{kind: handled, then: &replyHandler{
			onReply: arrived,
			onLost:  func(sent bool) { arrived(l.lossError(sent)) },
		}}, command)
	}
}
