package proxy

import (
	"bytes"
	"strconv"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
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
	selects  bool // SELECT is among the commands
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
		if cmd.Group == "cluster" {
			q.answer = func(*client) []byte { return resp.AppendError(nil, errNoCluster) }
		}
	}
	if cmd.Name == "function|flush" { // which libraries there are is known only when it runs
		return c.refuse("ERR Sonic refuses 'function|flush' inside a transaction")
	}
	switch cmd.Class {
	case command.Script:
		if c.loop.slots != nil && !c.loop.cfg.SlotOutboxes {
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
	tx.selects = tx.selects || cmd.Name == "select"
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

// addToCluster adds the slot of a command to the transaction. It returns an error for a command that
// cannot be part of it: all keys of a transaction are in one slot, and it goes to the primary of that
// slot as a whole.
func (tx *transaction) addToCluster(cmd *command.Command, slot int) (problem string) {
	if ofAllPrimaries(cmd) {
		return "ERR Sonic refuses '" + cmd.Name + "' inside a transaction: it runs on all primaries of the cluster"
	}
	var same bool
	if tx.slot, same = joinSlots(tx.slot, slot); !same {
		return errCrossSlot
	}
	return ""
}

// queuedSize is how many bytes a queued command takes besides its own: here, and in Redis, which
// gets it as a call of a function. Redis closes a connection whose queued commands exceed its
// limit. It also counts a pointer for each argument.
const (
	queuedSize   = 160
	argumentSize = 8
)

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
	if c.outstanding > 0 && tx.selects {
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
	return tx.scripts || c.loop.cfg.SlotOutboxes && tx.writes && tx.once
}

// watchKeys moves the client to a connection of its own, because WATCH belongs to a connection.
func (c *client) watchKeys(cmd *command.Command, r request.Request) bool {
	if c.tx != nil {
		return c.replyError("ERR WATCH inside MULTI is not allowed")
	}
	if !c.moveToDedicated() {
		return false
	}
	c.watch = true
	return c.relay(cmd, r)
}

func (c *client) unwatchKeys(cmd *command.Command, r request.Request) bool {
	if c.tx != nil {
		return c.queue(cmd, r)
	}
	c.endWatch()
	return c.replyOK()
}

// In front of a Redis Cluster WATCH and the EXEC after it go by a connection of the client's own, to
// the primary of the slot of the keys. Commands between them go by shared connections: they see what
// WATCH sees, because they are sent only after Redis has answered WATCH. A pipelined client waits for
// that one round trip. Its own writes are answered before EXEC is sent.

func (c *client) watchInCluster(_ *command.Command, r request.Request) bool {
	switch {
	case c.tx != nil:
		return c.replyError("ERR WATCH inside MULTI is not allowed")
	case c.watch && c.dedicated.watched != c.slot:
		return c.replyError(errCrossSlot)
	case c.outstanding > 0:
		return false
	case c.watch && c.dedicated.watch == nil: // EXEC will say that a key has changed
		return c.replyOK()
	}
	raw := bytes.Clone(r.Raw)
	var keys []string
	for i := 1; i < r.Len(); i++ {
		keys = append(keys, string(r.Arg(i)))
	}
	o := &dedicatedCommand{slot: c.slot, repeats: true}
	o.send = func(o *dedicatedCommand, address string, _ bool) {
		d := c.dedicated
		if !c.watch {
			c.connectTo(address, &d.watch)
		}
		o.b = d.watch
		o.b.send(pending{kind: handled, then: &replyHandler{
			onReply: func(reply []byte) {
				if reply[0] == '+' {
					c.watch, d.watched = true, o.slot
					for _, key := range keys {
						d.keys[key] = struct{}{}
					}
				}
				o.arrived(reply)
			},
			onLost: o.lost,
		}}, raw)
	}
	if c.watch { // what it watches since an earlier WATCH has moved: EXEC will say that a key has changed
		o.broken = func(o *dedicatedCommand) {
			if b := c.dedicated.watch; b != nil {
				c.dedicated.watch = nil
				b.discard()
			}
			o.end([]byte(replyOK))
		}
	}
	return c.runDedicated(o)
}

// watchedSlot returns the slot of the keys that the client watches, noSlot if it watches none.
func (c *client) watchedSlot() int {
	if c.watch && c.loop.slots != nil {
		return c.dedicated.watched
	}
	return noSlot
}

func (c *client) endWatch() {
	if !c.watch {
		return
	}
	c.watch = false
	b := c.backend
	if c.loop.slots != nil {
		b, c.dedicated.keys = c.dedicated.watch, map[string]struct{}{}
	}
	if b != nil {
		b.send(discardReply(), resp.AppendCommand(nil, "UNWATCH"))
	}
}

// execWatched runs EXEC of a client that watches keys. Their slot may have moved since: then the
// answer is that a key has changed, so that the client tries again.
func (c *client) execWatched(tx *transaction) bool {
	if c.outstanding > 0 {
		return false
	}
	b, bound := c.dedicated.watch, c.boundToOpened(tx)
	if bound && b != nil && !b.opened {
		return c.checkOpened(b)
	}
	keys := c.dedicated.keys
	c.tx, c.watch, c.dedicated.keys = nil, false, map[string]struct{}{}
	if b == nil {
		return c.reply(nullArray(c.proto))
	}
	run := c.prepare(tx)
	run.slot, run.watched, run.connectionBound = tx.slot, true, bound
	run.checkKeys(keys)
	c.busy = true // the next command may go by another connection
	run.send(b, nil)
	return true
}

// changeWatchProtocol makes Redis answer EXEC in the client's protocol.
func (c *client) changeWatchProtocol() {
	if c.dedicated == nil || c.dedicated.watch == nil || c.dedicated.watch.proto == c.proto {
		return
	}
	b := c.dedicated.watch
	b.proto = c.proto
	b.send(discardReply(), resp.AppendCommand(nil, "HELLO", strconv.Itoa(c.proto)))
}
