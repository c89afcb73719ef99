package proxy

import (
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// transaction holds the commands between MULTI and EXEC. They go to Redis at EXEC, in one piece.
type transaction struct {
	commands []queued
	raw      []byte // of all commands, one behind the other
	size     int64  // what Redis counts of it at most
	spoilt   bool   // a command was refused
	writes   bool
	scripts  bool // scripts that declare keys are among them
}

// queued is a command of a transaction.
type queued struct {
	cmd    *command.Command
	start  int // in transaction.raw
	end    int
	behind int // where the arguments begin
	n      int // arguments with the name
	write  bool
	keys   int // that a script declares
	first  int // where they begin, in transaction.raw
	last   int
	answer func(c *client) []byte
}

// element is what a transaction's reply holds for one of its commands.
type element struct {
	cmd    *command.Command
	answer []byte // the proxy's own; nil: the next one that Redis gave
	write  bool   // of a function
	script bool   // replies of functions stand before and behind it
	db     int    // where it runs
	// counted: the number of state keys comes before it.
	counted bool
	// emptyArray: as in pending.
	emptyArray bool
}

func (c *client) multi(_ *command.Command, _ request) bool {
	if c.tx != nil {
		c.replyError("ERR MULTI calls can not be nested")
		return true
	}
	c.tx = &transaction{}
	c.reply([]byte(replyOK))
	return true
}

// queue keeps a command until EXEC.
func (c *client) queue(cmd *command.Command, r request) bool {
	tx := c.tx
	q := queued{cmd: cmd, n: r.len()}
	switch cmd.Class {
	case command.Script:
		var problem string
		if q.keys, problem = c.l.p.declaredKeys(cmd, r); problem != "" {
			return c.refuse(problem)
		}
	case command.Connection:
		return c.refuse("ERR Sonic refuses '" + cmd.Name + "' inside a transaction")
	case command.Answered:
		if cmd.Name != "select" && cmd.Name != "echo" && cmd.Name != "ping" {
			if q.answer = answerLater(cmd.Name); q.answer == nil {
				return c.refuse("ERR Sonic refuses '" + cmd.Name + "' inside a transaction")
			}
		}
	default:
	}
	q.write = c.l.p.writesBy(cmd, r)
	writes := q.write || q.keys > 0
	if writes && !c.writable() && !c.l.p.writesHeld() { // held ones wait at EXEC
		return c.refuse(c.l.p.noWrites())
	}
	if q.keys > 0 {
		q.first, q.last = len(tx.raw)+r.args[2].End+2, len(tx.raw)+r.args[2+q.keys].End+2
		tx.size += 2 * countedSize(q.last-q.first, q.keys)
		tx.scripts = true
	}
	if tx.size += countedSize(len(r.raw), r.len()); tx.size > min(c.l.cfg.Limits.QueryBytes, c.l.p.query.Load()-queryRest) {
		c.close() // as Redis does when its query buffer is full
		return true
	}
	q.start = len(tx.raw)
	tx.raw = append(tx.raw, r.raw...)
	q.end = len(tx.raw)
	q.behind = q.start + r.args[0].End + 2
	tx.commands = append(tx.commands, q)
	tx.writes = tx.writes || writes
	c.reply([]byte("+QUEUED\r\n"))
	return true
}

// queuedSize is what a queued command takes besides its own bytes: here, and in Redis, which gets it as a call of a function and closes a connection
// whose queued commands are larger than its bound. Redis counts a pointer for each argument, too.
const (
	queuedSize   = 160
	argumentSize = 8
)

// countedSize is what a queued command counts.
func countedSize(bytes, arguments int) int64 {
	return int64(bytes) + argumentSize*int64(arguments) + queuedSize
}

// answerLater returns what answers a command of the proxy's own at EXEC; nil when that cannot be.
func answerLater(name string) func(*client) []byte {
	switch name {
	case "client|id":
		return func(c *client) []byte { return resp.AppendHeader(nil, ':', int(c.id)) }
	case "acl|whoami":
		return func(c *client) []byte { return resp.AppendBulk(nil, c.user.name) }
	case "client|getname":
		return func(c *client) []byte {
			switch {
			case len(c.name) > 0:
				return resp.AppendBulk(nil, c.name)
			case c.proto == 3:
				return []byte("_\r\n")
			}
			return []byte("$-1\r\n")
		}
	}
	return nil
}

func (c *client) discardTx(_ *command.Command, _ request) bool {
	if c.tx == nil {
		c.replyError("ERR DISCARD without MULTI")
		return true
	}
	c.dropTx()
	c.reply([]byte(replyOK))
	return true
}

// dropTx forgets the transaction and what it watches.
func (c *client) dropTx() {
	c.tx = nil
	if c.watch {
		c.watch = false
		c.b.send(c.swallow(), resp.AppendCommand(nil, "UNWATCH"))
	}
}

func (c *client) abortTx(text string) bool {
	c.dropTx()
	c.replyError(text)
	return true
}

// exec sends MULTI, the commands, the end of the effects and EXEC. Redis queues them and runs all or none.
func (c *client) exec(_ *command.Command, _ request) bool {
	tx := c.tx
	if tx == nil {
		c.replyError("ERR EXEC without MULTI")
		return true
	}
	if tx.spoilt {
		return c.abortTx("EXECABORT Transaction discarded because of previous errors.")
	}
	if tx.writes && !c.writable() {
		if c.l.p.writesHeld() {
			return c.refusedWrite() // it waits
		}
		return c.abortTx("EXECABORT Transaction discarded because of: " + c.l.p.noWrites())
	}
	if c.outstanding > 0 && c.selects(tx) {
		return false // it may go to another connection afterwards
	}
	b, ok := c.home()
	if !ok {
		return false
	}
	if tx.scripts && !b.fenced {
		if problem := c.refused; problem != "" {
			c.refused = ""
			return c.abortTx("EXECABORT Transaction discarded because of: " + problem)
		}
		return c.passFence(b)
	}
	c.tx, c.watch = nil, false
	run := c.prepare(tx)
	run.b = b
	c.busy = run.db != c.db
	b.push(pending{client: c, kind: handled, then: &handling{replies: run.sent + 2, here: tx.scripts, each: run.reply, lost: run.lost}})
	b.out = append(b.out, run.out...)
	b.appended(len(run.out))
	return true
}

func (c *client) selects(tx *transaction) bool {
	for i := range tx.commands {
		if tx.commands[i].cmd.Name == "select" {
			return true
		}
	}
	return false
}

// execution is a transaction that runs.
type execution struct {
	c        *client
	b        *backend
	out      []byte
	sent     int // commands between MULTI and EXEC
	seen     int // replies so far
	elements []element
	closed   bool // sonic_tx was sent
	db       int  // when it has run
}

// prepare turns the client's commands into what Redis gets.
func (c *client) prepare(tx *transaction) *execution {
	p := c.l.p
	e := &execution{c: c, db: c.db}
	e.out = resp.AppendCommand(nil, "MULTI")
	id := p.newTx()
	writes := false
	for i := range tx.commands {
		q := &tx.commands[i]
		raw := tx.raw[q.start:q.end]
		el := element{cmd: q.cmd, db: e.db, emptyArray: emptyArray(q.cmd, q.n)}
		switch {
		case q.answer != nil:
			el.answer = q.answer(c)
			e.elements = append(e.elements, el)
			continue
		case q.cmd.Name == "select":
			db, problem := p.database(resp.Text(tx.raw[q.behind:q.end]))
			if problem != "" {
				el.answer = resp.AppendError(nil, problem)
				e.elements = append(e.elements, el)
				continue
			}
			e.db = db
			e.out = append(e.out, raw...)
		case q.write:
			// Within a transaction a blocking command does not wait: Redis is asked as for any write.
			e.out = p.appendCall(e.out, q.cmd, c.modeIn(e.db, "t"+id), q.n-1, tx.raw[q.behind:q.end])
			el.write, writes = true, true
		case q.keys > 0:
			declared, mode := tx.raw[q.first:q.last], c.modeIn(e.db, "t"+id)
			e.out = appendKeys(e.out, p.markKeys, mode, q.keys, declared)
			e.out = append(e.out, raw...)
			e.out = appendKeys(e.out, p.shipKeys, mode, q.keys, declared)
			el.script, writes = true, true
			e.sent += 2
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
		e.closed = true
		e.out = append(e.out, "*5\r\n"...)
		e.out = append(e.out, p.closeTx...)
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

// modeIn returns the first argument of functions for a db, as a bulk string.
func (c *client) modeIn(db int, flags string) []byte {
	mode := strconv.Itoa(db)
	if c.proto == 3 {
		mode += "r"
	}
	return resp.AppendBulk(nil, mode+flags)
}

// reply takes the replies to MULTI, to each command, and to EXEC. Only the last one is for the client, but for errors
// that Redis gave before: its EXEC then says that it has discarded all.
func (e *execution) reply(reply []byte) {
	e.seen++
	if e.seen < e.sent+2 {
		return
	}
	c := e.c
	c.busy = false
	c.enqueue()
	answer, id := e.answer(reply)
	if e.ran(reply) && e.db != c.db {
		c.db = e.db
		c.setMode()
		if c.b != nil && c.b.owner == c {
			c.b.db = e.db
			c.b.send(c.swallow(), resp.AppendCommand(nil, "SELECT", strconv.Itoa(e.db)))
		}
	}
	c.deliverPublished(id, answer)
}

func (e *execution) ran(reply []byte) bool {
	return len(reply) > 1 && reply[0] == '*' && reply[1] != '-'
}

// answer returns what the client gets for what EXEC gave, and the id of the last effect.
func (e *execution) answer(reply []byte) (answer, id []byte) {
	if !e.ran(reply) {
		return reply, nil // nil of a WATCH, EXECABORT
	}
	p := e.c.l.p
	given, err := resp.Elements(reply)
	if err != nil || len(given) != e.sent {
		return resp.AppendError(nil, "ERR Sonic cannot read the reply of the transaction"), nil
	}
	answer = resp.AppendHeader(nil, '*', len(e.elements))
	for i := range e.elements {
		el := &e.elements[i]
		if el.answer != nil {
			answer = append(answer, el.answer...)
			continue
		}
		if el.counted {
			e.c.noteStateKeys(given[0])
			given = given[1:]
		}
		one := given[0]
		given = given[1:]
		switch {
		case el.script:
			e.b.fenced = e.b.fenced && noted(one, given[1])
			one = p.unwrapNoted(el.cmd, one, given[0], given[1])
			given = given[2:]
		case el.write:
			one = p.mend(el.cmd, el.emptyArray, one, e.c.proto)
		default:
			one = p.hideIn(el.cmd, one, e.c, el.db)
		}
		answer = append(answer, one...)
	}
	if e.closed {
		id = resp.Text(given[0])
	}
	return answer, id
}

func (e *execution) lost(sent bool) {
	c := e.c
	c.busy = false
	c.enqueue()
	if sent {
		c.l.p.metrics.unknown.Inc()
		c.deliver(resp.AppendError(nil, errUnknownOutcome))
		return
	}
	c.deliver(resp.AppendError(nil, errUnreachable))
}

// watchKeys moves the client to a connection of its own: Redis watches for a connection.
func (c *client) watchKeys(_ *command.Command, r request) bool {
	if c.tx != nil {
		c.replyError("ERR WATCH inside MULTI is not allowed")
		return true
	}
	if !c.takeOwn() {
		return false
	}
	c.watch = true
	return c.relay(nil, r)
}

func (c *client) unwatchKeys(_ *command.Command, r request) bool {
	if c.tx != nil {
		return c.queue(c.l.p.table.Lookup(r.arg(0), nil), r)
	}
	c.watch = false
	if c.b != nil && c.b.owner == c {
		return c.relay(nil, r)
	}
	c.reply([]byte(replyOK))
	return true
}

// newTx returns a name of a transaction that no other one has, in hexadecimal digits.
func (p *Proxy) newTx() string { return p.runID + strconv.FormatUint(p.lastTx.Add(1), 16) }
