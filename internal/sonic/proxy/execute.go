package proxy

import (
	"bytes"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// request is a command of a client. It is valid only while it is executed.
type request struct {
	raw  []byte // as an array of bulk strings
	args []resp.Arg
}

func (r request) arg(i int) []byte { return r.raw[r.args[i].Start:r.args[i].End] }

func (r request) len() int { return len(r.args) }

// behind returns the arguments after the first n, as bulk strings.
func (r request) behind(n int) []byte { return r.raw[r.args[n-1].End+2:] }

// longest returns the length of the longest argument.
func (r request) longest() (n int64) {
	for _, arg := range r.args {
		n = max(n, int64(arg.End-arg.Start))
	}
	return n
}

// handler executes a command. It returns false when the command cannot begin before all replies that are due have come:
// then it is called again.
type handler func(c *client, cmd *command.Command, r request) bool

// statePrefix begins the names of all state keys.
const statePrefix = "{sonic:"

// execute checks and runs a command in the order in which Redis' processCommand does. It returns false when the command
// has to wait.
func (c *client) execute(r request) bool {
	p := c.l.p
	name := r.arg(0)
	var sub []byte
	if r.len() > 1 {
		sub = r.arg(1)
	}
	cmd := p.table.Lookup(name, sub)
	if cmd == nil {
		if resp.EqualFold(name, "post") || resp.EqualFold(name, "host:") {
			return c.speaksHTTP()
		}
		return c.refuse(p.unknown(r))
	}
	if !cmd.Takes(r.len()) {
		return c.reject(cmd, "ERR wrong number of arguments for '"+cmd.Name+"' command")
	}
	if c.user == nil && !cmd.NoAuth {
		return c.reject(cmd, "NOAUTH Authentication required.")
	}
	if c.tx != nil && cmd.NoMulti {
		return c.refuse("ERR Command not allowed inside a transaction")
	}
	if cmd.Class == command.Refused {
		p.metrics.commands[cmd.Class].Add(1)
		return c.refuse("ERR Sonic refuses '" + cmd.Name + "': " + cmd.Reason)
	}
	if longest := p.longest.Load(); int64(len(r.raw)) > longest && r.longest() > longest {
		return c.refuse("ERR Protocol error: invalid bulk length") // Redis would end the connection that all share
	}
	if from := p.options[cmd.Index]; from > 0 && disguised(cmd, r, from) {
		return c.refuse("ERR syntax error")
	}
	if cmd.Group == "scripting" {
		if problem := aboutLibrary(cmd, r); problem != "" {
			return c.refuse(problem)
		}
	}
	if problem := c.denied(cmd, r); problem != "" {
		return c.refuse(problem)
	}
	if c.subs != nil && c.proto == 2 && c.subs.count() > 0 && !allowedWhileSubscribed(cmd.Name) {
		return c.reject(cmd, "ERR Can't execute '"+cmd.Name+
			"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")
	}
	run := p.handlers[cmd.Index]
	if c.tx != nil && cmd.Class != command.Transaction && cmd.Name != "quit" && cmd.Name != "reset" {
		run = (*client).queue
	}
	done := run(c, cmd, r)
	if done {
		p.metrics.commands[cmd.Class].Add(1)
	}
	return done
}

// speaksHTTP ends a client as Redis does: the rest of a request that a web page made a browser send would be taken for commands.
func (c *client) speaksHTTP() bool {
	l := c.l
	if l.now.Sub(l.warned) > time.Minute {
		l.warned = l.now
		l.log.Warn("possible attack: a client sent POST or Host:, as a browser does, and was disconnected", zap.String("address", c.addr))
	}
	c.close()
	return true
}

// refuse answers with an error and, within MULTI, spoils the transaction.
func (c *client) refuse(text string) bool {
	if c.tx != nil {
		c.tx.spoilt = true
	}
	c.replyError(text)
	return true
}

// reject is refuse; but as in Redis an EXEC that may not run ends the transaction.
func (c *client) reject(cmd *command.Command, text string) bool {
	if cmd.Name == "exec" {
		return c.abortTx("EXECABORT Transaction discarded because of: " + strings.TrimPrefix(text, "ERR "))
	}
	return c.refuse(text)
}

// denied returns the error of a command that the client's user may not run, or that names a state key.
func (c *client) denied(cmd *command.Command, r request) string {
	u := c.user
	if u != nil && (u.readOnly || u.keys != nil) && !u.mayRun(cmd) {
		return "NOPERM this user has no permissions to run the '" + cmd.Name + "' command"
	}
	if !cmd.HasKeys() {
		if cmd.Name == "spublish" || cmd.Name == "ssubscribe" {
			return deniedChannel(r)
		}
		return ""
	}
	if i := cmd.SingleKey(); i > 0 && (u == nil || u.keys == nil) { // the most frequent case
		if isState(r.arg(i)) {
			return errStateKey
		}
		return ""
	}
	if u != nil && u.keys != nil && (cmd.Name == "sort" || cmd.Name == "sort_ro") {
		if problem := deniedPattern(r); problem != "" {
			return problem
		}
	}
	problem := ""
	cmd.Keys(r.raw, r.args, func(i int) bool {
		switch key := r.arg(i); {
		case isState(key):
			problem = errStateKey
		case u != nil && !u.mayName(key):
			problem = "NOPERM this user has no permissions to access one of the keys used as arguments"
		}
		return problem == ""
	})
	return problem
}

const errStateKey = "NOPERM keys and shard channels that begin with {sonic: belong to Sonic"

// deniedChannel returns the error of SPUBLISH or SSUBSCRIBE with a channel of Sonic's own: with outbox off effects go to the shipper on one.
func deniedChannel(r request) string {
	last := r.len()
	if resp.EqualFold(r.arg(0), "spublish") {
		last = min(last, 2) // the message may be anything
	}
	for i := 1; i < last; i++ {
		if isState(r.arg(i)) {
			return errStateKey
		}
	}
	return ""
}

func isState(key []byte) bool {
	return len(key) >= len(statePrefix) && key[0] == '{' && string(key[:len(statePrefix)]) == statePrefix
}

func allowedWhileSubscribed(name string) bool {
	switch name {
	case "subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe", "ping", "quit", "reset":
		return true
	}
	return false
}

// unknown returns Redis' error of a command that it does not know.
func (p *Proxy) unknown(r request) string {
	if container := p.table.Lookup(r.arg(0), nil); container != nil && container.HasSubcommands() {
		return fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.",
			cString(r.arg(1), 128), strings.ToUpper(string(r.arg(0))))
	}
	var args strings.Builder
	for i := 1; i < r.len() && args.Len() < 128; i++ {
		fmt.Fprintf(&args, "'%s' ", cString(r.arg(i), 128-args.Len()))
	}
	return fmt.Sprintf("ERR unknown command '%s', with args beginning with: %s", cString(r.arg(0), 128), args.String())
}

// cString is C's %.*s: it ends at a zero byte.
func cString(b []byte, most int) []byte {
	b = b[:min(len(b), most)]
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return b
}

// handlersOf returns what runs each command.
func (p *Proxy) handlersOf() []handler {
	special := map[string]handler{
		"ping": (*client).ping, "echo": (*client).echo, "quit": (*client).quit, "reset": (*client).reset,
		"auth": (*client).auth, "hello": (*client).hello, "select": (*client).selectDB, "acl|whoami": (*client).whoAmI,
		"client|id": (*client).clientID, "client|getname": (*client).clientGetName, "client|setname": (*client).clientSetName,
		"client|info": (*client).clientInfo, "client|list": (*client).clientList, "client|kill": (*client).clientKill,
		"client|no-evict": (*client).clientNoEvict, "client|reply": (*client).clientReply, "client|unblock": (*client).clientUnblock,
		"multi": (*client).multi, "exec": (*client).exec, "discard": (*client).discardTx,
		"watch": (*client).watchKeys, "unwatch": (*client).unwatchKeys,
		"scan": (*client).scan, "keys": (*client).keys, "dbsize": (*client).dbSize, "randomkey": (*client).randomKey,
		"xread": (*client).readStreams, "xreadgroup": (*client).readStreams,
		"sort": (*client).sort, "georadius": (*client).sort, "georadiusbymember": (*client).sort,
		"publish": (*client).publish, "config|get": (*client).configGet,
		"client|tracking": (*client).tracking, "client|trackinginfo": (*client).tracking, "client|caching": (*client).tracking,
	}
	handlers := make([]handler, len(p.table.All()))
	for i, cmd := range p.table.All() {
		h := special[cmd.Name]
		if h == nil {
			h = byClass(cmd.Class)
		}
		handlers[i] = h
	}
	return handlers
}

func byClass(class command.Class) handler {
	switch class {
	case command.Write:
		return (*client).write
	case command.Blocking:
		return (*client).block
	case command.Script:
		return (*client).script
	case command.Connection:
		return (*client).subscribe
	default:
		return (*client).relay
	}
}

// home returns the connection where the client's commands go. ok is false when it must wait: replies come in order only
// while all commands of a client are on one connection.
func (c *client) home() (b *backend, ok bool) {
	if c.b != nil && (c.b.owner == c || c.b.db == c.db && c.b.proto == c.proto) && c.b.state != discarded {
		return c.b, true
	}
	if c.outstanding > 0 {
		return nil, false
	}
	c.b = c.l.connection(c.db, c.proto)
	return c.b, true
}

// relay sends a command as it is.
func (c *client) relay(_ *command.Command, r request) bool {
	b, ok := c.home()
	if !ok {
		return false
	}
	b.push(pending{client: c, kind: relayed})
	b.out = append(b.out, r.raw...)
	b.appended(len(r.raw))
	return true
}

// write sends a command as a call of its function.
func (c *client) write(cmd *command.Command, r request) bool {
	if !c.writable() {
		return c.refusedWrite()
	}
	b, ok := c.home()
	if !ok {
		return false
	}
	mode, kind := c.mode, function
	if c.l.cfg.Ack == AckPublished {
		mode, kind = c.modeWith("p"), published
	} else if head := c.l.p.headOf(cmd, r); head != nil {
		b.gather(c, cmd, head, r)
		return true
	}
	b.push(pending{client: c, cmd: cmd, kind: kind, emptyArray: emptyArray(cmd, r.len())})
	before := len(b.out)
	b.out = c.l.p.appendCall(b.out, cmd, mode, r.len()-1, r.behind(1))
	b.appended(len(b.out) - before)
	return true
}

// appendCall appends the call of cmd's function with that many arguments, which are bulk strings.
func (p *Proxy) appendCall(out []byte, cmd *command.Command, mode []byte, n int, arguments []byte) []byte {
	out = resp.AppendHeader(out, '*', n+5)
	out = append(out, p.functions[cmd.Index]...)
	out = append(out, mode...)
	return append(out, arguments...)
}

// modeWith returns the first argument of functions with more flags, as a bulk string.
func (c *client) modeWith(flags string) []byte {
	return resp.AppendBulk(nil, string(resp.Text(c.mode))+flags)
}

// writable reports whether writes may run now.
func (c *client) writable() bool { return Writes(c.l.p.writes.Load()) == WritesOpen }

// refusedWrite answers a write that may not run now, or lets it wait.
func (c *client) refusedWrite() bool {
	if c.l.p.writesHeld() {
		c.busy = true
		c.l.heldWriters[c] = struct{}{}
		return false
	}
	c.replyError(c.l.p.noWrites())
	return true
}

func (p *Proxy) writesHeld() bool { return Writes(p.writes.Load()) == WritesHeld }

// noWrites is the error of a write that is refused.
func (p *Proxy) noWrites() string { return "ERR Sonic takes no writes: " + *p.refusal.Load() }

// writesChanged lets clients go on whose writes waited.
func (l *loop) writesChanged() {
	for c := range l.heldWriters {
		c.proceed()
	}
	clear(l.heldWriters)
	tries := l.heldTries
	l.heldTries = make(map[*waiting]struct{})
	for w := range tries {
		w.changed()
	}
}

// since returns whole seconds for CLIENT LIST.
func since(now, t time.Time) int64 { return int64(now.Sub(t) / time.Second) }
