package proxy

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const (
	// backendPause of bytes that were not sent yet: clients of that connection are not read on until it is less.
	backendPause = 4 << 20
	// keptBuffer bounds what a connection keeps when it has nothing to send.
	keptBuffer = 1 << 20

	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
)

// What clients are told when Redis is lost.
const (
	errUnknownOutcome = "ERR the connection to Redis was lost while this command ran: whether it took effect is unknown"
	errUnnoted        = "ERR the script ran while no Sonic had opened this Redis: what it wrote is in this zone only, until it is written again"
	errUnpublished    = "ERR the connection to Redis was lost before Pulsar had stored this command's effect: whether it took effect is unknown"
	errUnreachable    = "LOADING Redis cannot be reached: the command was not run"
)

var errUnexpectedReply = errors.New("a reply that nobody asked for")

type backendState uint8

const (
	connecting backendState = iota
	up
	discarded
)

// backend is a connection to Redis. Commands go out in the order in which they come, of all clients, and replies come in
// that order.
//
// When it is lost, commands that Redis may have seen are answered with an error and are never sent again. Those that
// were not sent yet wait for the next connection, within Backend.Wait.
type backend struct {
	l         *loop
	db, proto int
	// owner has the connection for itself; nil when it is shared.
	owner *client
	// pushed takes what comes without having been asked for.
	pushed func(push []byte)
	// began is called whenever a connection begins.
	began func()

	state    backendState
	place    place // of the connection that is up
	fd       int
	interest uint32
	dirty    bool

	out     []byte // what is to be sent
	sent    int    // of out
	queued  uint64 // all that was ever put into out
	written uint64 // all that was ever written
	replies fifo
	waiting []*client // are not read on until out is less
	many    many      // writes that come next

	scan      resp.Scanner
	rest      []byte // of what was read: a line that is not whole
	part      []byte // of a reply that is not whole
	inReply   bool
	streaming bool // the reply under way goes to its client piece by piece
	dropping  bool // the reply under way is too large for its client

	demoted bool // Redis has become a replica
	fenced  bool // a Sonic has opened this Redis: it may run scripts of users

	// One command at a time is measured.
	measured bool
	sample   uint64 // where it begins
	since    time.Time

	downSince time.Time // zero while it is up
	giveUp    *timer
	backoff   time.Duration
}

func newBackend(l *loop, db, proto int) *backend {
	return &backend{l: l, db: db, proto: proto, fd: -1, downSince: l.now}
}

// connect dials in a goroutine, which hands the socket over.
func (b *backend) connect() {
	b.state = connecting
	if b.giveUp == nil {
		b.giveUp = b.l.timers.start(b.downSince.Add(b.l.cfg.Backend.Wait), b.failUnsent)
	}
	b.l.p.background.Go(func() {
		fd, to, err := b.l.p.dial(b.l.ctx, b.db, b.proto)
		if !b.l.post(func() { b.connected(fd, to, err) }) && err == nil {
			closeSocket(fd)
		}
	})
}

func (b *backend) connected(fd int, to place, err error) {
	l := b.l
	if b.state == discarded {
		if err == nil {
			closeSocket(fd)
		}
		return
	}
	if err == nil && l.p.outdated(to) {
		closeSocket(fd)
		err = errMoved
	}
	if err == nil {
		b.interest = eventRead | eventHalfEnd
		if err = l.register(fd, b, b.interest); err != nil {
			closeSocket(fd)
		}
	}
	if err != nil {
		if b.owner == nil && !l.connected() { // others tell nothing about clients' way to Redis, which may have no room for one more
			l.p.noteDown(err)
		}
		b.backoff = min(max(minBackoff, 2*b.backoff), maxBackoff)
		l.timers.start(l.now.Add(b.backoff/2+rand.N(b.backoff)), func() {
			if b.state == connecting {
				b.connect()
			}
		})
		return
	}
	b.fd, b.state, b.backoff, b.place = fd, up, 0, to
	b.downSince = time.Time{}
	l.timers.stop(b.giveUp)
	b.giveUp = nil
	if b.owner == nil {
		l.p.noteUp()
	}
	if b.began != nil {
		b.began()
	}
	b.touch()
}

// failUnsent answers what waited too long for a connection.
func (b *backend) failUnsent() {
	b.giveUp = &timer{index: -1} // no second one until it is up again
	b.fail()
	if owner := b.owner; owner != nil {
		// Some of what makes the connection its own has failed, WATCH or SUBSCRIBE for instance: the client begins anew.
		b.discard()
		owner.leave()
	}
}

// unreachable reports whether a connection has been missing for so long that nothing waits for it any more.
func (b *backend) unreachable() bool {
	return b.state != up && b.l.now.Sub(b.downSince) >= b.l.cfg.Backend.Wait
}

// fail answers all that was not sent with an error.
func (b *backend) fail() {
	b.many = many{}
	for b.replies.n > 0 {
		b.failFront(false)
	}
	b.out, b.sent = b.out[:0], 0
	b.resumeWaiting()
}

// failFront answers what is pending first with an error. sent tells whether Redis may have seen it.
func (b *backend) failFront(sent bool) {
	p := *b.replies.front()
	b.replies.pop()
	switch {
	case p.kind == local:
		b.answer(&p, p.then.answer)
	case p.then != nil && p.then.lost != nil:
		p.then.lost(sent)
	case p.client != nil && sent:
		b.l.p.metrics.unknown.Inc()
		p.client.deliver(resp.AppendError(nil, errUnknownOutcome))
	case p.client != nil:
		p.client.deliver(resp.AppendError(nil, errUnreachable))
	}
	if p.client != nil {
		p.client.replied()
	}
}

// lost ends the connection. What was not sent yet waits for the next one.
func (b *backend) lost(err error) {
	if b.state != up {
		return
	}
	b.endMany()
	l := b.l
	l.release(b.fd)
	b.fd, b.state, b.downSince = -1, connecting, l.now
	if b.owner == nil {
		l.p.noteDown(err)
	}
	l.log.Debug("the connection to Redis ended", zap.Int("db", b.db), zap.Error(err))
	if b.streaming && b.inReply && b.replies.n > 0 {
		if c := b.replies.front().client; c != nil {
			c.close() // it has half a reply
		}
	}
	b.scan, b.rest, b.part, b.inReply, b.streaming, b.dropping = resp.Scanner{}, nil, nil, false, false, false
	b.measured, b.demoted, b.fenced = false, false, false
	if b.owner == nil {
		l.doubt()
	} else {
		b.owner.doubt()
	}
	unsent := b.queued - uint64(len(b.out)-b.sent) // where it begins; b.written, in other words
	for b.replies.n > 0 && (b.replies.front().start < unsent || b.replies.front().kind == local) {
		b.failFront(true)
	}
	if b.holdsOwn() {
		b.fail()
	}
	if b.replies.n > 0 {
		keep := b.queued - b.replies.front().start
		b.out = append(b.out[:0], b.out[uint64(len(b.out))-keep:]...)
	} else {
		b.out = b.out[:0]
	}
	b.sent = 0
	if b.owner != nil {
		// What Redis kept for the connection is gone: the client must know.
		owner := b.owner
		b.fail()
		b.discard()
		owner.leave()
		return
	}
	b.connect()
}

// holdsOwn reports whether a command waits that is for the connection that has ended only.
func (b *backend) holdsOwn() bool {
	for i := range b.replies.n {
		if then := b.replies.at(i).then; then != nil && then.here {
			return true
		}
	}
	return false
}

// discard ends the connection for good. Nobody gets an answer.
func (b *backend) discard() {
	if b.state == discarded {
		return
	}
	if b.state == up {
		b.l.release(b.fd)
	}
	b.state, b.fd = discarded, -1
	b.l.timers.stop(b.giveUp)
	delete(b.l.own, b)
	for b.replies.n > 0 {
		c := b.replies.front().client
		b.replies.pop()
		if c != nil && !c.closed {
			c.close()
		}
	}
	b.out, b.rest, b.part, b.many = nil, nil, nil, many{}
}

// push notes a reply that will come to what is appended to out next.
func (b *backend) push(p pending) {
	b.endMany()
	b.await(p)
}

// await notes a reply that will come to what has its place behind out.
func (b *backend) await(p pending) {
	p.start = b.queued
	p.messages = b.owner != nil && b.owner.subs != nil && b.owner.subs.count() > 0 || p.then != nil && p.then.subscription
	if p.client != nil {
		p.client.outstanding++
		if !b.measured && p.kind <= function {
			b.measured, b.sample, b.since = true, p.start, b.l.now
		}
	}
	b.replies.push(p)
}

// appended takes note of what was appended to out since push.
func (b *backend) appended(n int) {
	b.queued += uint64(n)
	b.touch()
	if b.unreachable() {
		b.fail()
	}
}

// send queues a command of the proxy's own words.
func (b *backend) send(p pending, command []byte) {
	b.push(p)
	b.out = append(b.out, command...)
	b.appended(len(command))
}

// prepend sends a command before all that waits to be sent, on a connection that has just begun.
func (b *backend) prepend(p pending, command []byte) {
	b.endMany()
	waiting := b.replies
	b.replies = fifo{}
	b.out = append(append([]byte(nil), command...), b.out[b.sent:]...)
	b.sent = 0
	b.queued += uint64(len(command))
	p.start = b.queued - uint64(len(b.out))
	b.replies.push(p)
	for ; waiting.n > 0; waiting.pop() {
		later := *waiting.front()
		later.start += uint64(len(command))
		b.replies.push(later)
	}
}

// touch has the loop write what is queued at the end of the round.
func (b *backend) touch() {
	if !b.dirty && b.state == up {
		b.dirty = true
		b.l.dirtyBackends = append(b.l.dirtyBackends, b)
	}
}

func (b *backend) flush() {
	if b.state != up {
		return
	}
	b.endMany()
	for b.sent < len(b.out) {
		n, err := writeSocket(b.fd, b.out[b.sent:])
		if n > 0 {
			b.sent += n
			b.written += uint64(n)
		}
		if errors.Is(err, errAgain) {
			break
		}
		if err != nil {
			b.lost(err)
			return
		}
	}
	if b.sent == len(b.out) {
		b.out, b.sent = b.out[:0], 0
		if cap(b.out) > keptBuffer || b.owner != nil {
			b.out = nil
		}
	} else if b.sent > keptBuffer && b.sent > len(b.out)/2 {
		b.out = append(b.out[:0], b.out[b.sent:]...)
		b.sent = 0
	}
	b.wait(b.sent < len(b.out))
	if len(b.out)-b.sent < backendPause {
		b.resumeWaiting()
	}
}

// wait sets whether the loop tells when the socket can be written.
func (b *backend) wait(writable bool) {
	interest := uint32(eventRead | eventHalfEnd)
	if writable {
		interest |= eventWrite
	}
	if interest != b.interest {
		b.interest = interest
		if err := b.l.poll.change(b.fd, interest); err != nil {
			b.lost(err)
		}
	}
}

func (b *backend) full() bool { return len(b.out)-b.sent >= backendPause }

func (b *backend) resumeWaiting() {
	waiting := b.waiting
	b.waiting = nil
	for _, c := range waiting {
		c.parked = false
		c.relax()
	}
}

func (b *backend) happened(what uint32) {
	if what&eventWrite != 0 {
		b.flush()
	}
	if what&(eventRead|eventHalfEnd|eventEnd) != 0 && b.state == up {
		b.receive()
	}
}

func (b *backend) receive() {
	buf := b.l.replies
	if len(b.rest) > len(buf)/2 {
		buf = make([]byte, len(b.rest)+len(buf))
	}
	have := copy(buf, b.rest)
	n, err := readSocket(b.fd, buf[have:])
	switch {
	case errors.Is(err, errAgain):
		return
	case err != nil:
		b.lost(err)
		return
	case n == 0:
		b.lost(io.EOF)
		return
	}
	if err := b.take(buf[:have+n]); err != nil {
		b.lost(err)
	}
}

// take hands replies to those who wait for them.
func (b *backend) take(buf []byte) error {
	pos := 0
	for pos < len(buf) {
		if !b.inReply {
			if err := b.beginReply(buf[pos]); err != nil {
				return err
			}
		}
		n, done, err := b.scan.Scan(buf[pos:])
		if err != nil {
			return err
		}
		piece := buf[pos : pos+n]
		pos += n
		switch {
		case b.streaming:
			if c := b.replies.front().client; !c.closed {
				c.deliver(piece)
			}
			if done {
				b.inReply = false
				b.completed()
			}
		case done:
			if len(b.part) > 0 || b.dropping {
				b.collect(piece)
				piece = b.part
			}
			b.inReply = false
			switch {
			case b.state != up:
			case b.dropping:
				b.dropped()
			default:
				b.whole(piece)
			}
			if cap(b.part) > pooledSize {
				b.part = nil
			}
			b.part = b.part[:0]
		default:
			b.collect(piece)
		}
		if b.state != up {
			return nil
		}
		if !done {
			break
		}
	}
	if b.demoted && !b.inReply {
		return errReplica
	}
	b.rest = append(b.rest[:0], buf[pos:]...)
	if len(b.rest) == 0 && cap(b.rest) > pooledSize {
		b.rest = nil
	}
	return nil
}

// collect keeps a piece of a reply that is not streamed. One that is larger than what its client may have waiting ends that client before it is whole, as a
// streamed one does: it would be in memory several times.
func (b *backend) collect(piece []byte) {
	if b.dropping {
		return
	}
	c := b.owner
	if c == nil && b.replies.n > 0 && b.replies.front().many < 2 { // those of several writes are short
		c = b.replies.front().client
	}
	if c == nil || int64(len(b.part)+len(piece)) <= b.l.cfg.Limits.OutputBytes {
		b.part = append(b.part, piece...)
		return
	}
	b.part, b.dropping = nil, true
	if !c.closed {
		b.l.p.metrics.slowClients.Inc()
		c.close()
	}
}

// dropped forgets a reply that was too large for its client, once it has ended.
func (b *backend) dropped() {
	b.dropping = false
	b.fenced = false // it may have told that the library is not open
	if p := b.replies.front(); p.kind == handled && p.then.replies > 1 {
		p.then.replies--
		return
	}
	b.completed()
}

// beginReply decides what becomes of a reply from its first byte and from what is due.
func (b *backend) beginReply(first byte) error {
	b.inReply = true
	b.streaming = false
	if b.replies.n == 0 {
		if b.pushed == nil {
			return errUnexpectedReply
		}
		return nil
	}
	p := b.replies.front()
	b.streaming = p.kind == relayed && first != '>' && p.client != nil &&
		(b.owner == nil || b.owner.subs == nil)
	return nil
}

// whole takes a reply that was not streamed.
func (b *backend) whole(reply []byte) {
	if b.isPush(reply) {
		if b.pushed != nil {
			b.pushed(reply)
		}
		return
	}
	if b.replies.n == 0 {
		b.lost(errUnexpectedReply)
		return
	}
	p := b.replies.front()
	switch p.kind {
	case function:
		if p.many > 1 {
			b.shareOut(int(p.many), reply)
			return
		}
		b.noteReadOnly(reply)
		p.client.deliver(b.l.p.mend(p.cmd, p.emptyArray, reply, b.proto))
	case published:
		b.noteReadOnly(reply)
		p.client.published(p, reply, b.proto)
	case handled:
		then := p.then
		last := then.replies <= 1 || then.subscription && reply[0] == '-' // one error stands for all
		if !last {
			then.replies--
		}
		then.each(reply)
		if !last || b.state == discarded || b.replies.n == 0 {
			return
		}
	case relayed, local:
		if p.client != nil {
			p.client.deliver(reply)
		}
	}
	b.completed()
}

// noteReadOnly ends a connection to a Redis that has become a replica: another one is the primary now.
func (b *backend) noteReadOnly(reply []byte) {
	if reply[0] == '-' && bytes.HasPrefix(reply, []byte("-READONLY")) {
		b.demoted = true
	}
}

// completed forgets the reply that was due first, and gives the proxy's own answers that waited behind it.
func (b *backend) completed() {
	for {
		p := *b.replies.front()
		b.replies.pop()
		if b.measured && p.start >= b.sample {
			b.measured = false
			b.l.p.metrics.latency.observe(b.l.now.Sub(b.since))
		}
		if p.client != nil {
			p.client.replied()
		}
		if b.replies.n == 0 || b.replies.front().kind != local {
			return
		}
		next := b.replies.front()
		b.answer(next, next.then.answer)
	}
}

func (b *backend) answer(p *pending, answer []byte) {
	if p.client != nil {
		p.client.answers -= len(answer)
		p.client.deliver(answer)
	}
}

// isPush reports whether a reply was not asked for: RESP3 has a type for such, which it uses for the replies to SUBSCRIBE
// and its kin, too; in RESP2 only their first word tells.
func (b *backend) isPush(reply []byte) bool {
	subscribing := b.replies.n > 0 && b.replies.front().then != nil && b.replies.front().then.subscription
	if b.proto == 3 {
		return reply[0] == '>' && !(subscribing && isSubscription(reply))
	}
	if b.owner == nil || b.owner.subs == nil || reply[0] != '*' || b.replies.n > 0 && !b.replies.front().messages {
		return false
	}
	return isMessage(reply)
}

// isSubscription reports whether a push is a reply to SUBSCRIBE and its kin.
func isSubscription(push []byte) bool {
	word := firstWord(push)
	return bytes.HasSuffix(word, []byte("subscribe"))
}

func isMessage(push []byte) bool {
	switch string(firstWord(push)) {
	case "message", "pmessage", "smessage":
		return true
	}
	return false
}

// firstWord returns the first element of an aggregate when it is a string.
func firstWord(reply []byte) []byte {
	i := bytes.IndexByte(reply, '\n')
	if i < 0 || i+1 >= len(reply) {
		return nil
	}
	return resp.Text(reply[i+1:])
}
