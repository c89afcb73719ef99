package proxy

import (
	"bytes"
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// transaction holds the commands between MULTI and EXEC. The proxy sends them to Redis together at
// EXEC.
type transaction struct {
	commands []queuedCommand
	raw      []byte // all commands, one after the other
	size     int64  // its size as Redis counts it, at most
	aborted  bool   // a command was refused, so that EXEC fails
	writes   bool
	scripts  bool // at least one script is recorded
	slot     int  // in front of a Redis Cluster: of the keys, or noSlot
	once     bool // Redis may not execute it twice, even if it has refused all of its writes
}

// queuedCommand is a command of a transaction.
type queuedCommand struct {
	cmd       *command.Command
	start     int // in transaction.raw
	end       int
	argsStart int // where the arguments begin, in transaction.raw
	n         int // arguments with the name
	write     bool
	recorded  bool // a script between two functions that record what it does
	keys      int  // number of keys that a script declares
	keysStart int  // where they begin, in transaction.raw
	keysEnd   int
	script    *publishing.Script // as in Request
	answer    func(c *client) []byte
}

// element describes the element of a transaction's reply for one of its commands.
type element struct {
	cmd    *command.Command
	answer []byte             // the proxy's own answer; nil: the next element of Redis' reply
	write  bool               // the command ran as a function
	script bool               // the replies of two functions surround it
	named  *publishing.Script // as in Request.Script
	db     int                // the db in which the command runs
	// counted says that the number of state keys precedes it.
	counted bool
	// emptyArray: as in pending.
	emptyArray bool
}

func (c *client) multi(_ *command.Command, _ request.Request) bool {
	if c.tx != nil {
		return c.replyError("ERR MULTI calls can not be nested")
	}
	c.tx = &transaction{slot: c.watchedSlot()}
	return c.replyOK()
}

// queue keeps a command until EXEC.
func (c *client) queue(cmd *command.Command, r request.Request) bool {
	tx := c.tx
	q := queuedCommand{cmd: cmd, n: r.Len(), script: r.Script}
	if c.loop.slots != nil {
		if problem := tx.addToCluster(cmd, c.slot); problem != "" {
			return c.refuse(problem)
		}
	}
	if c.loop.slots != nil && cmd.Group == "cluster" {
		q.answer = func(*client) []byte { return resp.AppendError(nil, errNoCluster) }
	}
	if cmd.Name == "function|flush" { // which libraries there are is known only when it runs
		return c.refuse("ERR Sonic refuses 'function|flush' inside a transaction")
	}
	switch cmd.Class {
	case command.Script:
		if c.loop.slots != nil && !c.loop.cfg.Replicate {
			break
		}
		var problem string
		if q.keys, problem = c.loop.proxy.declaredKeys(cmd, r); problem != "" {
			return c.refuse(problem)
		}
		q.recorded = q.keys > 0 || c.loop.proxy.mayPublish(cmd, r)
	case command.Connection:
		return c.refuse("ERR Sonic refuses '" + cmd.Name + "' inside a transaction")
	case command.Answered:
		if cmd.Name != "select" && cmd.Name != "echo" && cmd.Name != "ping" {
			if q.answer = ownAnswer(cmd.Name); q.answer == nil {
				return c.refuse("ERR Sonic refuses '" + cmd.Name + "' inside a transaction")
			}
		}
	default:
	}
	q.write = c.loop.proxy.writesBy(cmd, r)
	writes := q.write || q.recorded
	tx.once = tx.once || q.recorded || !q.write && cmd.Class != command.Read && cmd.Class != command.Answered
	if writes && !c.writable() && !c.loop.proxy.writesDelayed() { // if writes are delayed, EXEC waits
		return c.refuse(c.loop.proxy.writesRefusedError())
	}
	if q.recorded {
		q.keysStart, q.keysEnd = len(tx.raw)+r.Args[2].End+2, len(tx.raw)+r.Args[2+q.keys].End+2
		tx.size += 2 * countedSize(q.keysEnd-q.keysStart, q.keys)
		tx.scripts = true
	}
	if tx.size += countedSize(len(r.Raw), r.Len()); tx.size > min(c.loop.cfg.Limits.QueryBytes, c.loop.proxy.dialer.TransactionBytes()) {
		c.close() // as Redis does if its query buffer is full
		return true
	}
	q.start = len(tx.raw)
	tx.raw = append(tx.raw, r.Raw...)
	q.end = len(tx.raw)
	q.argsStart = q.start + r.Args[0].End + 2
	tx.commands = append(tx.commands, q)
	tx.writes = tx.writes || writes
	return c.reply([]byte("+QUEUED\r\n"))
}

// queuedSize is how many bytes a queued command takes besides its own: here, and in Redis, which
// gets it as a call of a function. Redis closes a connection whose queued commands exceed its
// limit. It also counts a pointer for each argument.
const (
	queuedSize   = 160
	argumentSize = 8
)

// countedSize returns the size that a queued command counts.
func countedSize(bytes, arguments int) int64 {
	return int64(bytes) + argumentSize*int64(arguments) + queuedSize
}

func (c *client) discardTx(_ *command.Command, _ request.Request) bool {
	if c.tx == nil {
		return c.replyError("ERR DISCARD without MULTI")
	}
	c.dropTx()
	return c.replyOK()
}

// dropTx ends the transaction and its WATCH.
func (c *client) dropTx() {
	c.tx = nil
	c.endWatch()
}

func (c *client) abortTx(text string) bool {
	c.dropTx()
	return c.replyError(text)
}

// exec sends MULTI, the commands, the call that ends the transaction's effects, and EXEC. Redis
// queues them and runs all or none.
func (c *client) exec(_ *command.Command, _ request.Request) bool {
	tx := c.tx
	if tx == nil {
		return c.replyError("ERR EXEC without MULTI")
	}
	if tx.aborted {
		return c.abortTx("EXECABORT Transaction discarded because of previous errors.")
	}
	if tx.writes && !c.writable() {
		if c.loop.proxy.writesDelayed() {
			return c.delayOrRefuseWrite() // it waits
		}
		return c.abortTx("EXECABORT Transaction discarded because of: " + c.loop.proxy.writesRefusedError())
	}
	if c.outstanding > 0 && c.selects(tx) {
		return false // afterwards the client may use another connection
	}
	if c.watch && c.loop.slots != nil {
		return c.execWatched(tx)
	}
	c.slot = tx.slot
	if tx.writes {
		c.useAnySlot()
		tx.slot = c.slot
	}
	b, ok := c.connection()
	if !ok {
		return false
	}
	bound := c.boundToOpened(tx)
	if bound && !b.opened {
		return c.checkOpened(b)
	}
	c.tx, c.watch = nil, false
	run := c.prepare(tx)
	run.slot = tx.slot
	c.busy = run.db != c.db
	run.connectionBound = bound
	run.send(b, nil)
	return true
}

// boundToOpened reports whether a transaction may be sent only if a Sonic is known to have opened the
// Redis at the other end of the connection.
func (c *client) boundToOpened(tx *transaction) bool {
	return tx.scripts || c.loop.cfg.Replicate && tx.writes && tx.once
}

func (c *client) selects(tx *transaction) bool {
	for i := range tx.commands {
		if tx.commands[i].cmd.Name == "select" {
			return true
		}
	}
	return false
}

// execution is a transaction that was sent to Redis.
type execution struct {
	c               *client
	b               *backend
	out             []byte
	sent            int // commands between MULTI and EXEC
	connectionBound bool
	seen            int // replies so far
	elements        []element
	endsEffects     bool   // sonic_tx was sent
	db              int    // the client's db after the transaction
	script          bool   // it is a script outside a transaction
	refusal         []byte // the first error before that of EXEC, of a script: EXEC does not say which

	clusterExecution
}

// send sends the transaction. order is its place among the client's replies, nil for the next one.
func (e *execution) send(b *backend, order *ordered) {
	e.b, e.seen, e.refusal, e.c.slot = b, 0, nil, e.slot
	b.push(pending{client: e.c, order: order, kind: handled, then: &replyHandler{
		replies: e.sent + 2, connectionBound: e.connectionBound, onReply: e.reply, onLost: e.lost,
		onMove: func(to *backend) { e.b = to },
	}})
	b.out = append(b.out, e.out...)
	b.appended(len(e.out))
}

// prepare converts the client's commands into those for Redis.
func (c *client) prepare(tx *transaction) *execution {
	p := c.loop.proxy
	e := &execution{c: c, db: c.db}
	e.out = resp.AppendCommand(nil, "MULTI")
	id := p.newTx()
	writes := false
	for i := range tx.commands {
		q := &tx.commands[i]
		raw := tx.raw[q.start:q.end]
		el := element{cmd: q.cmd, db: e.db, emptyArray: replies.RepliesNullArray(q.cmd, q.n), named: q.script}
		switch {
		case q.answer != nil:
			el.answer = q.answer(c)
			e.elements = append(e.elements, el)
			continue
		case q.cmd.Name == "select":
			db, problem := p.database(resp.Text(tx.raw[q.argsStart:q.end]))
			if problem != "" {
				el.answer = resp.AppendError(nil, problem)
				e.elements = append(e.elements, el)
				continue
			}
			e.db = db
			e.out = append(e.out, raw...)
		case q.write:
			// Within a transaction a blocking command does not block: it runs as any write.
			e.out = p.appendCall(e.out, q.cmd, tx.slot, c.modeIn(e.db, "t"+id), q.n-1, tx.raw[q.argsStart:q.end])
			el.write, writes = true, true
		case q.recorded:
			declared := tx.raw[q.keysStart:q.keysEnd]
			e.out = appendKeys(e.out, p.markKeys, p.outbox(tx.slot), c.modeIn(e.db, p.markFlags()), q.keys, declared)
			e.out = append(e.out, raw...)
			e.out = appendKeys(e.out, p.shipKeys, p.outbox(tx.slot), c.modeIn(e.db, "t"+id), q.keys, declared)
			el.script, writes = true, true
			e.sent += 2
		case q.cmd.Name == "randomkey" && e.db == 0:
			e.out = append(e.out, p.randomKey...)
		case q.cmd.Name == "dbsize":
			el.counted = true
			e.out = append(e.out, p.countState...)
			e.out = append(e.out, raw...)
			e.sent++
		default:
			e.out = append(e.out, raw...)
		}
		e.elements = append(e.elements, el)
		e.sent++
	}
	if writes {
		if p.cfg.Replicate {
			e.guarded = true
			e.out = append(e.out, moveGuard(tx.slot)...)
			e.sent++
		}
		e.endsEffects = true
		e.out = append(e.out, "*5\r\n"...)
		e.out = append(e.out, p.closeTx...)
		e.out = append(e.out, p.outbox(tx.slot)...)
		e.out = append(e.out, c.modeIn(e.db, "t"+id)...)
		e.sent++
	}
	if e.db != c.db {
		e.out = append(e.out, resp.AppendCommand(nil, "SELECT", strconv.Itoa(c.db))...)
		e.sent++
	}
	e.out = append(e.out, resp.AppendCommand(nil, "EXEC")...)
	return e
}

// modeIn returns the mode for a db, with flags, as a bulk string.
func (c *client) modeIn(db int, flags string) []byte {
	mode := strconv.Itoa(db)
	if c.proto == 3 {
		mode += "r"
	}
	return resp.AppendBulk(nil, mode+flags)
}

// reply handles the replies to MULTI, to each command, and to EXEC. It uses only the last one: if
// Redis has refused a command before, the reply to EXEC says that the transaction was discarded.
func (e *execution) reply(reply []byte) {
	e.seen++
	if e.script && e.refusal == nil && reply[0] == '-' && e.seen < e.sent+2 {
		e.refusal = bytes.Clone(reply)
	}
	if e.b.primary != "" {
		e.noteRedirection(reply)
	}
	if e.seen < e.sent+2 {
		return
	}
	if e.c.loop.cfg.Replicate {
		var waits bool
		if reply, waits = e.refused(reply); waits {
			return
		}
	}
	c := e.c
	switch {
	case e.redirection == nil:
	case e.watched: // what has moved may have changed
		reply = nullArray(c.proto)
	case e.resend():
		return
	default:
		reply = movingAbort()
	}
	e.releaseClient()
	answer, id := e.answer(reply)
	if e.ran(reply) && e.db != c.db {
		c.setDB(e.db)
	}
	c.deliverPublished(id, answer)
}

// releaseClient lets the client run its next command.
func (e *execution) releaseClient() {
	if e.waited {
		e.waited = false
		e.c.waitDone()
		return
	}
	e.c.busy = e.c.waiting > 0
	e.c.enqueue()
}

func (e *execution) ran(reply []byte) bool {
	return len(reply) > 1 && reply[0] == '*' && reply[1] != '-'
}

// answer converts Redis' reply to EXEC into the client's reply. It also returns the id of the last
// effect.
func (e *execution) answer(reply []byte) (answer, id []byte) {
	if !e.ran(reply) {
		if e.refusal != nil {
			reply = e.refusal
		}
		return reply, nil // null because of a WATCH, or EXECABORT
	}
	p := e.c.loop.proxy
	given := resp.Elements(reply)
	if len(given) != e.sent {
		return resp.AppendError(nil, "ERR Sonic cannot read the reply of the transaction"), nil
	}
	if e.watched {
		given = given[1:] // of EXISTS
	}
	if !e.script {
		answer = resp.AppendHeader(nil, '*', len(e.elements))
	}
	for i := range e.elements {
		el := &e.elements[i]
		if el.answer != nil {
			answer = append(answer, el.answer...)
			continue
		}
		if el.counted {
			e.c.storeStateKeyCount(given[0])
			given = given[1:]
		}
		one := given[0]
		given = given[1:]
		switch {
		case el.script:
			e.b.opened = e.b.opened && recorded(one, given[1])
			one = p.unwrapRecorded(el.cmd, one, withOwnName(el.named, given[0]), given[1])
			given = given[2:]
		case el.write:
			one = replies.FromFunction(el.cmd, el.emptyArray, one, e.c.proto)
		default:
			one = withOwnName(el.named, p.filterReply(el.cmd, one, e.c, el.db))
		}
		answer = append(answer, one...)
	}
	if e.guarded {
		given = given[1:]
	}
	if e.endsEffects {
		id = resp.Text(given[0])
	}
	return answer, id
}

func (e *execution) lost(sent bool) {
	c := e.c
	if !sent && e.lostUnsent() {
		return
	}
	e.releaseClient()
	if e.watched && !sent {
		c.deliver(nullArray(c.proto))
		return
	}
	c.deliver(c.loop.lossError(sent))
}

// watchKeys moves the client to a connection of its own, because WATCH belongs to a connection.
func (c *client) watchKeys(_ *command.Command, r request.Request) bool {
	if c.tx != nil {
		return c.replyError("ERR WATCH inside MULTI is not allowed")
	}
	if !c.openDedicated() {
		return false
	}
	c.watch = true
	return c.relay(nil, r)
}

func (c *client) unwatchKeys(_ *command.Command, r request.Request) bool {
	if c.tx != nil {
		return c.queue(c.loop.proxy.table.Lookup(r.Arg(0), nil), r)
	}
	if c.loop.slots != nil {
		c.endWatch()
		return c.replyOK()
	}
	c.watch = false
	if c.backend != nil && c.backend.owner == c {
		return c.relay(nil, r)
	}
	return c.replyOK()
}

// newTx returns a unique id for a transaction, in hexadecimal digits.
func (p *Proxy) newTx() string {
	p.lastTx++
	return p.runID + strconv.FormatUint(p.lastTx, 16)
}
