package proxy

import (
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// handler executes a command. It returns false if the command cannot begin yet. The proxy then
// calls it again, for instance when all pending replies have arrived.
type handler func(c *client, cmd *command.Command, r request.Request) bool

// execute checks and runs a command in the order in which Redis' processCommand does. It returns
// false when the command has to wait.
func (c *client) execute(r request.Request) bool {
	p := c.loop.proxy
	name := r.Arg(0)
	var sub []byte
	if r.Len() > 1 {
		sub = r.Arg(1)
	}
	cmd := p.table.Lookup(name, sub)
	if cmd == nil {
		if resp.EqualFold(name, "post") || resp.EqualFold(name, "host:") {
			return c.closeHTTPClient()
		}
		return c.refuse(p.unknown(r))
	}
	if !cmd.Takes(r.Len()) {
		return c.reject(cmd, "ERR wrong number of arguments for '"+cmd.Name+"' command")
	}
	if c.user == nil && !cmd.NoAuth {
		return c.reject(cmd, "NOAUTH Authentication required.")
	}
	if c.tx != nil && cmd.NoMulti {
		return c.refuse("ERR Command not allowed inside a transaction")
	}
	if cmd.Class == command.Refused {
		p.metrics.commands[cmd.Class].Inc()
		return c.refuse("ERR Sonic refuses '" + cmd.Name + "': " + cmd.Reason)
	}
	if p.cfg.Publish && cmd.Group == "scripting" {
		r = p.notePublished(cmd, r)
	}
	if longest := p.dialer.LongestArgument(); int64(len(r.Raw)) > longest && r.LongestArg() > longest {
		return c.refuse("ERR Protocol error: invalid bulk length") // Redis would close the connection that all clients share
	}
	if from := p.options[cmd.Index]; from > 0 && request.HasNULTerminatedOption(cmd, r, from) {
		return c.refuse("ERR syntax error")
	}
	if cmd.Group == "scripting" {
		if problem := request.LibraryError(cmd, r); problem != "" {
			return c.refuse(problem)
		}
	}
	if problem := c.denied(cmd, r); problem != "" {
		return c.refuse(problem)
	}
	if c.subs != nil && c.proto == 2 && c.subs.count() > 0 && !request.AllowedWhileSubscribed(cmd.Name) {
		return c.reject(cmd, "ERR Can't execute '"+cmd.Name+
			"': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")
	}
	if p.cfg.Cluster != nil {
		if problem := c.findSlot(cmd, r); problem != "" {
			return c.refuse(problem)
		}
	}
	run := p.handlers[cmd.Index]
	if c.tx != nil && cmd.Class != command.Transaction && cmd.Name != "quit" && cmd.Name != "reset" {
		run = (*client).queue
	}
	done := run(c, cmd, r)
	if done {
		p.metrics.commands[cmd.Class].Inc()
	}
	return done
}

// closeHTTPClient disconnects a client that sends an HTTP request, as Redis does. A web page may
// have made a browser send the request, and the rest of it could be run as commands.
func (c *client) closeHTTPClient() bool {
	l := c.loop
	if l.now.Sub(l.httpWarnedAt) > time.Minute {
		l.httpWarnedAt = l.now
		l.log.Warn("possible attack: a client sent POST or Host:, as a browser does, and was disconnected", zap.String("address", c.addr))
	}
	c.close()
	return true
}

// refuse answers with an error. Within MULTI it also makes EXEC fail.
func (c *client) refuse(text string) bool {
	if c.tx != nil {
		c.tx.aborted = true
	}
	return c.replyError(text)
}

// reject is like refuse, except that, as in Redis, an EXEC that may not run ends the transaction.
func (c *client) reject(cmd *command.Command, text string) bool {
	if cmd.Name == "exec" {
		return c.abortTx("EXECABORT Transaction discarded because of: " + strings.TrimPrefix(text, "ERR "))
	}
	return c.refuse(text)
}

// denied returns the error for a command that the client's user may not run, or that names a state
// key. It returns "" for any other command.
func (c *client) denied(cmd *command.Command, r request.Request) string {
	u := c.user
	if u != nil && (u.ReadOnly || u.Keys != nil) && !u.MayRun(cmd) {
		return "NOPERM this user has no permissions to run the '" + cmd.Name + "' command"
	}
	if !cmd.HasKeys() {
		return ""
	}
	if i := cmd.SingleKey(); i > 0 && (u == nil || u.Keys == nil) { // the most frequent case
		if state.IsKey(r.Arg(i)) {
			return request.StateKeyError
		}
		return ""
	}
	if u != nil && u.Keys != nil && (cmd.Name == "sort" || cmd.Name == "sort_ro") {
		if problem := request.SortPatternError(r); problem != "" {
			return problem
		}
	}
	problem := ""
	cmd.Keys(r.Raw, r.Args, func(i int) bool {
		switch key := r.Arg(i); {
		case state.IsKey(key):
			problem = request.StateKeyError
		case u != nil && !u.MayUseKey(key):
			problem = "NOPERM this user has no permissions to access one of the keys used as arguments"
		}
		return problem == ""
	})
	return problem
}

// unknown returns the error of Redis for an unknown command.
func (p *Proxy) unknown(r request.Request) string {
	if container := p.table.Lookup(r.Arg(0), nil); container != nil && container.HasSubcommands() {
		return fmt.Sprintf("ERR unknown subcommand '%s'. Try %s HELP.",
			request.CString(r.Arg(1), 128), strings.ToUpper(string(r.Arg(0))))
	}
	var args strings.Builder
	for i := 1; i < r.Len() && args.Len() < 128; i++ {
		fmt.Fprintf(&args, "'%s' ", request.CString(r.Arg(i), 128-args.Len()))
	}
	return fmt.Sprintf("ERR unknown command '%s', with args beginning with: %s", request.CString(r.Arg(0), 128), args.String())
}

// handlersOf returns the handler of each command, by Command.Index.
func (p *Proxy) handlersOf() []handler {
	special := map[string]handler{
		"ping": (*client).ping, "echo": (*client).echo, "quit": (*client).quit, "reset": (*client).reset,
		"auth": (*client).auth, "hello": (*client).hello, "select": (*client).selectDB, "acl|whoami": (*client).answerOwn,
		"client|id": (*client).answerOwn, "client|getname": (*client).answerOwn, "client|setname": (*client).clientSetName,
		"client|info": (*client).clientInfo, "client|list": (*client).clientList, "client|kill": (*client).clientKill,
		"client|no-evict": (*client).clientNoEvict, "client|reply": (*client).clientReply, "client|unblock": (*client).clientUnblock,
		"multi": (*client).multi, "exec": (*client).exec, "discard": (*client).discardTx,
		"watch": (*client).watchKeys, "unwatch": (*client).unwatchKeys,
		"scan": (*client).relayWithoutStateKeys, "keys": (*client).relayWithoutStateKeys, "dbsize": (*client).dbSize, "randomkey": (*client).randomKey,
		"xread": (*client).readStreams, "xreadgroup": (*client).readStreams,
		"sort": (*client).writeOrRelay, "georadius": (*client).writeOrRelay, "georadiusbymember": (*client).writeOrRelay,
		"eval_ro": (*client).relayScript, "evalsha_ro": (*client).relayScript, "script|load": (*client).relayScript,
		"publish": (*client).writeOrRelay, "config|get": (*client).relayFiltered, "info": (*client).relayFiltered,
		"function|list": (*client).relayFiltered, "function|flush": (*client).functionFlush,
		"client|tracking": (*client).tracking, "client|trackinginfo": (*client).tracking, "client|caching": (*client).tracking,
	}
	handlers := make([]handler, len(p.table.All()))
	for i, cmd := range p.table.All() {
		h := special[cmd.Name]
		if h == nil {
			h = byClass(cmd.Class)
		}
		if p.cfg.Cluster != nil {
			h = p.inCluster(cmd, h)
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

// connection returns the connection to Redis for the client's commands. ok is false if the client
// must wait before it changes the connection: replies arrive in order only while all pending
// commands of a client are on one connection.
func (c *client) connection() (b *backend, ok bool) {
	if c.loop.slots != nil {
		return c.primary()
	}
	shared := c.backend != nil && c.backend.owner == nil && (c.proto == 2 || c.channels() == nil)
	if c.backend != nil && (c.backend.owner == c || shared && c.backend.db == c.db && c.backend.proto == c.proto) && c.backend.state != discarded {
		return c.backend, true
	}
	if c.outstanding > 0 {
		return nil, false
	}
	if c.useChannels() {
		return c.backend, true
	}
	c.backend = c.loop.connection(c.db, c.proto)
	return c.backend, true
}

// relay sends a command unchanged.
func (c *client) relay(cmd *command.Command, r request.Request) bool {
	b, ok := c.connection()
	if !ok {
		return false
	}
	b.push(pending{client: c, kind: relayed, reads: cmd.Class == command.Read, script: cmd.Group == "scripting"})
	b.out = append(b.out, r.Raw...)
	b.appended(len(r.Raw))
	return true
}

// write sends a command as a call of its function.
func (c *client) write(cmd *command.Command, r request.Request) bool {
	if !c.writable() {
		return c.delayOrRefuseWrite()
	}
	c.useAnySlot()
	b, ok := c.connection()
	if !ok {
		return false
	}
	mode, kind := c.mode, function
	if c.loop.cfg.AckPublished {
		mode, kind = c.modeIn(c.db, "p"), published
	} else if head := c.loop.proxy.batchHead(cmd, r); head != nil {
		b.addToBatch(c, cmd, head, r)
		return true
	}
	b.push(pending{client: c, cmd: cmd, kind: kind, call: true, emptyArray: replies.RepliesNullArray(cmd, r.Len())})
	before := len(b.out)
	b.out = c.loop.proxy.appendCall(b.out, c.loop.proxy.functions[cmd.Index], c.slot, mode, r.Len()-1, r.ArgsAfter(1))
	b.appended(len(b.out) - before)
	return true
}

// writeOrRelay runs a command that writes only in some cases.
func (c *client) writeOrRelay(cmd *command.Command, r request.Request) bool {
	if c.loop.proxy.writesBy(cmd, r) {
		return c.write(cmd, r)
	}
	return c.relay(cmd, r)
}

// writesBy reports whether the proxy runs the command as a function.
func (p *Proxy) writesBy(cmd *command.Command, r request.Request) bool {
	if p.cfg.Cluster != nil && !p.cfg.SlotOutboxes {
		return false
	}
	switch cmd.Class {
	case command.Write:
		switch cmd.Name {
		case "sort", "georadius", "georadiusbymember":
			return request.Stores(cmd, r)
		}
		return true
	case command.Blocking:
		return true
	default:
		return p.cfg.Publish && cmd.Name == "publish"
	}
}

// appendCall appends the call of a function with n arguments, which are bulk strings. slot is that of
// the keys in front of a Redis Cluster.
func (p *Proxy) appendCall(out, function []byte, slot int, mode []byte, n int, arguments []byte) []byte {
	out = resp.AppendHeader(out, '*', n+5)
	out = append(out, function...)
	out = append(out, p.outbox(slot)...)
	out = append(out, mode...)
	return append(out, arguments...)
}

// writable reports whether writes may run now.
func (c *client) writable() bool { return WriteMode(c.loop.proxy.writes.Load()) == WritesOpen }

// delayOrRefuseWrite refuses a write that may not run now, or makes it wait.
func (c *client) delayOrRefuseWrite() bool {
	if c.loop.proxy.writesDelayed() {
		c.busy = true
		c.loop.waitingWriters[c] = struct{}{}
		return false
	}
	return c.replyError(c.loop.proxy.writesRefusedError())
}

func (p *Proxy) writesDelayed() bool { return WriteMode(p.writes.Load()) == WritesDelayed }

func (p *Proxy) writesRefusedError() string { return "ERR Sonic takes no writes: " + *p.refusal.Load() }

// writesChanged resumes the clients whose writes waited.
func (l *loop) writesChanged() {
	for c := range l.waitingWriters {
		c.commandDone()
	}
	clear(l.waitingWriters)
	tries := l.waitingBlocked
	l.waitingBlocked = make(map[*blockedCommand]struct{})
	for w := range tries {
		w.onKeyChange()
	}
}

// since returns the whole seconds from t to now, for CLIENT LIST.
func since(now, t time.Time) int64 { return int64(now.Sub(t) / time.Second) }
