package proxy

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// element describes the element of a transaction's reply for one of its commands.
type element struct {
	cmd    *command.Command
	answer []byte             // the proxy's own answer; nil: the next element of Redis' reply
	write  bool               // the command ran as a function
	script bool               // the replies of two functions surround it
	named  *publishing.Script // as in Request.Script
	db     int                // the db in which the command runs
	// emptyArray: as in pending.
	emptyArray bool
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

	// In front of a Redis Cluster only:

	slot        int
	redirection *upstream.Redirection // in the replies
	upstream.Attempts
	watched bool // it runs on the client's own connection, after WATCH
	waited  bool // it is among client.waiting
	guarded bool // moveGuard is in it
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
		case q.cmd.Name == "select":
			db, problem := p.database(resp.Text(tx.raw[q.argsStart:q.end]))
			if problem != "" {
				el.answer = resp.AppendError(nil, problem)
				break
			}
			e.db = db
			e.out = append(e.out, raw...)
		case q.write:
			// Within a transaction a blocking command does not block: it runs as any write.
			e.out = p.appendCall(e.out, p.functions[q.cmd.Index], tx.slot, c.modeIn(e.db, "t"+id), q.n-1, tx.raw[q.argsStart:q.end])
			el.write, writes = true, true
		case q.recorded:
			declared := tx.raw[q.keysStart:q.keysEnd]
			e.out = p.appendCall(e.out, p.markKeys, tx.slot, c.modeIn(e.db, p.markFlags()), q.keys, declared)
			e.out = append(e.out, raw...)
			e.out = p.appendCall(e.out, p.shipKeys, tx.slot, c.modeIn(e.db, "t"+id), q.keys, declared)
			el.script, writes = true, true
			e.sent += 2
		case q.cmd.Name == "randomkey" && e.db == 0:
			e.out = append(e.out, p.randomKey...)
		case q.cmd.Name == "dbsize" && e.db == 0:
			e.out = append(e.out, p.dbSize...)
		default:
			e.out = append(e.out, raw...)
		}
		e.elements = append(e.elements, el)
		if el.answer == nil {
			e.sent++
		}
	}
	if writes {
		if p.cfg.SlotOutboxes {
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

// checkKeys makes the transaction begin with EXISTS of the watched keys. Redis then redirects it if
// it no longer has one of them, whatever keys the transaction itself uses: that key may have changed
// where it is now. EXEC checks it again, in the same step as it executes the commands.
func (e *execution) checkKeys(keys map[string]struct{}) {
	exists := resp.AppendHeader(nil, '*', len(keys)+1)
	exists = resp.AppendBulk(exists, "EXISTS")
	for key := range keys {
		exists = resp.AppendBulk(exists, key)
	}
	e.out = slices.Insert(e.out, len(resp.AppendCommand(nil, "MULTI")), exists...)
	e.sent++
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
	if e.b.primary != "" {
		var waits bool
		if reply, waits = e.refused(reply); waits {
			return
		}
	}
	e.releaseClient()
	answer, id := e.answer(reply)
	if e.ran(reply) && e.db != e.c.db {
		e.c.setDB(e.db)
	}
	e.c.deliverPublished(id, answer)
}

// releaseClient lets the client run its next command.
func (e *execution) releaseClient() {
	if e.waited {
		e.waited = false
		e.c.waitingDone()
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
	if !sent && c.loop.slots != nil && !e.watched && !c.closed && !e.b.unreachable() { // Redis has not received it
		e.wait(resp.AppendError(nil, errPrimaryUnreachable))
		return
	}
	e.releaseClient()
	if e.watched && !sent {
		c.deliver(nullArray(c.proto))
		return
	}
	c.deliver(c.loop.lossError(sent))
}

// newTx returns a unique id for a transaction, in hexadecimal digits.
func (p *Proxy) newTx() string {
	p.lastTx++
	return p.runID + strconv.FormatUint(p.lastTx, 16)
}

// refused handles the last reply to a transaction of a primary of a Redis Cluster. If it has executed
// nothing of it, or only refused writes, the transaction is sent again, and waits is true. Otherwise
// refused returns the reply to EXEC.
func (e *execution) refused(reply []byte) (answer []byte, waits bool) {
	c, l := e.c, e.c.loop
	writesRefused := e.writesRefused(reply)
	e.b.opened = e.b.opened && !writesRefused
	switch {
	case e.watched:
		if e.redirection != nil || !e.connectionBound && writesRefused {
			e.redirection = nil
			reply = nullArray(c.proto) // nothing was written, and what has moved may have changed: the client tries again
		}
		return reply, false
	case e.redirection != nil:
		to := *e.redirection
		e.redirection = nil
		l.cfg.Cluster.Refresh()
		// ASK would have to precede each command. The slot has moved soon.
		if !to.Asking && len(c.refused) == 0 && e.MayFollow(to) {
			if target := l.connectionTo(to.Address, 0, c.proto); target.opened || !e.connectionBound {
				e.send(target, c.replies.current)
				return nil, true
			}
		}
		reply = resp.AppendError(nil, "EXECABORT Transaction discarded because of: "+errMoving)
		if e.script {
			reply = resp.AppendError(nil, errMoving)
		}
		e.refusal = nil
	case !e.connectionBound && writesRefused:
	default:
		c.failOvertaken(e.slot, c.replies.current)
		return reply, false
	}
	e.wait(bytes.Clone(reply))
	return nil, true
}

// writesRefused reports whether all writes of the transaction were refused: no Sonic has opened the
// primary, or it may lack effects of the slot.
func (e *execution) writesRefused(reply []byte) bool {
	if !e.endsEffects || !e.ran(reply) || !bytes.HasSuffix(reply, []byte("\r\n")) {
		return false
	}
	last := bytes.LastIndexByte(reply[:len(reply)-2], '\n') + 1 // the reply of sonic_tx is one line if it is an error
	return replies.IsNotOpened(reply[last:]) || bytes.HasPrefix(reply[last:], []byte("-TRYAGAIN "))
}

// wait sends the transaction again after a pause. reply is the one to EXEC if it has waited for too
// long.
func (e *execution) wait(reply []byte) {
	c, order := e.c, e.c.replies.current
	order.parts++ // the reply is not complete while the transaction waits
	c.outstanding++
	release := func() {
		c.partDone(order)
		c.replyDone()
	}
	if !e.waited {
		e.waited, e.Since = true, c.loop.now
		c.waiting++
	}
	c.waitRefused(refusedCommand{
		slot: e.slot, place: order.place, since: e.Since, opened: e.connectionBound,
		send: func(b *backend) {
			e.send(b, order)
			release()
		},
		fail: func() {
			c.replies.current = order
			e.releaseClient()
			answer, _ := e.answer(reply)
			c.deliver(answer)
			release()
		},
	})
}

// noteRedirection keeps the first redirection in the replies: Redis has then discarded the
// transaction.
func (e *execution) noteRedirection(reply []byte) {
	if e.redirection != nil {
		return
	}
	if to, ok := upstream.RedirectionOf(reply, e.b.primary); ok {
		e.redirection = &to
	}
}

// moveGuard returns a command that makes Redis refuse the MULTI that it is in while the slot moves:
// it reads a key that does not exist. Redis finds that out before it executes anything of the
// MULTI. A function notices a move only when commands before it have run.
func moveGuard(slot int) []byte {
	return resp.AppendCommand(nil, "EXISTS", strings.TrimSuffix(script.SlotOutbox(slot), "out")+"none")
}
