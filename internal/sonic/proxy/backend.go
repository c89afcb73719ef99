package proxy

import (
	"bytes"
	"errors"
	"io"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

const (
	// backendPause is how many bytes may wait to be sent to Redis. Above it the loop reads no
	// further commands of the clients of this connection.
	backendPause = 4 << 20
	// keptBuffer is the maximum size of the buffer that a shared connection keeps when it has
	// nothing to send. A client's own connection keeps none. From this size on, a connection also
	// removes what is sent from the front of its buffer.
	keptBuffer = 1 << 20

	minBackoff = 10 * time.Millisecond
	maxBackoff = time.Second
)

// errUnexpectedReply ends a connection whose replies do not match its commands.
var errUnexpectedReply = errors.New("redis sent a reply without a command")

type backendState uint8

const (
	connecting backendState = iota
	up
	discarded
)

// backend is a connection to Redis. It sends the commands of all its clients in the order of
// arrival, and Redis replies in that order.
//
// When the connection is lost, commands that Redis may have received get an error and are never
// sent again. Commands that were not sent yet wait for the next connection, at most for
// Backend.Wait. They get an error at once if one of them is bound to the connection that has ended,
// or if the connection has an owner, which is then disconnected.
type backend struct {
	loop      *loop
	db, proto int
	primary   string // the address of a primary of a Redis Cluster; empty for a single Redis
	// owner is the only client of the connection; nil if clients share it.
	owner *client
	// onPush is called with each push message.
	onPush func(push []byte)
	// onConnect is called after each connect.
	onConnect func()
	// onEnd is called when a connection with an owner has ended.
	onEnd func()

	state      backendState
	server     upstream.Server // the server of the present connection
	fd         int
	interest   uint32
	dirty      bool
	halfClosed bool // nothing more will be sent than what out has

	out           []byte // bytes to be sent
	sent          int    // of out
	queuedBytes   uint64 // number of bytes ever added to out
	replies       fifo
	pausedClients []*client  // the loop reads no further commands of these until out is shorter
	batch         writeBatch // writes that will be sent next

	scan         resp.Scanner
	partialLine  []byte // the beginning of a line that has not arrived completely
	partialReply []byte // the beginning of a reply that has not arrived completely
	inReply      bool
	streaming    bool // the present reply goes to its client piece by piece
	dropping     bool // the present reply is too large for its client

	demoted bool // Redis has become a replica
	opened  bool // a Sonic has opened this Redis: users' scripts may run

	// The latency of one command at a time is measured.
	measuring   bool
	sampleStart uint64 // where this command begins
	sampleTime  time.Time

	downSince time.Time // zero while it is up
	failTimer *eventloop.Timer
	backoff   backoff.Backoff
}

func newBackend(l *loop, db, proto int) *backend {
	return &backend{loop: l, db: db, proto: proto, fd: -1, downSince: l.now, backoff: backoff.Backoff{Min: minBackoff, Max: maxBackoff}}
}

// connect dials in a goroutine, which then passes the socket to the loop.
func (b *backend) connect() {
	b.state = connecting
	if b.failTimer == nil {
		b.failTimer = b.loop.timers.Start(b.downSince.Add(b.loop.cfg.Backend.Wait), b.failUnsent)
	}
	b.loop.proxy.background.Go(func() {
		fd, to, err := b.loop.proxy.dialer.Dial(b.loop.ctx, b.primary, b.db, b.proto)
		if !b.loop.post(func() { b.connected(fd, to, err) }) && err == nil {
			eventloop.CloseSocket(fd)
		}
	})
}

func (b *backend) connected(fd int, to upstream.Server, err error) {
	l := b.loop
	if b.state == discarded {
		if err == nil {
			eventloop.CloseSocket(fd)
		}
		return
	}
	if err == nil && l.proxy.dialer.Outdated(to) {
		eventloop.CloseSocket(fd)
		err = errNewPrimary
	}
	if err == nil {
		b.interest = eventloop.EventRead | eventloop.EventHalfClose
		if err = l.register(fd, b, b.interest); err != nil {
			eventloop.CloseSocket(fd)
		}
	}
	if err != nil {
		// A failure of a client's own connection does not mean that Redis is unreachable: Redis may
		// have reached its connection limit.
		if b.owner == nil && (b.primary != "" || !l.connected()) {
			l.proxy.connectionDown(b.primary, err)
		}
		l.timers.Start(l.now.Add(b.backoff.Next()), func() {
			if b.primary != "" {
				l.dropFormerPrimaries()
			}
			if b.state == connecting {
				b.connect()
			}
		})
		return
	}
	b.fd, b.state, b.server = fd, up, to
	b.backoff.Reset()
	b.downSince = time.Time{}
	l.timers.Stop(b.failTimer)
	b.failTimer = nil
	if b.owner == nil {
		l.proxy.connectionUp(b.primary)
	}
	if b.onConnect != nil {
		b.onConnect()
	}
	b.scheduleFlush()
}

// discard ends the connection for good. It closes clients that wait for a reply.
func (b *backend) discard() {
	if b.state == discarded {
		return
	}
	if b.state == up {
		b.loop.release(b.fd)
	}
	b.state, b.fd = discarded, -1
	b.loop.timers.Stop(b.failTimer)
	delete(b.loop.dedicated, b)
	for b.replies.n > 0 {
		c := b.replies.front().client
		b.replies.pop()
		if c != nil && !c.closed {
			c.close()
		}
	}
	b.out, b.partialLine, b.partialReply, b.batch = nil, nil, nil, writeBatch{}
}

// push registers the reply to the command that the caller appends to out next.
func (b *backend) push(p pending) {
	b.endBatch()
	b.addPending(p)
}

// addPending registers the reply to a command that will follow the present content of out.
func (b *backend) addPending(p pending) {
	p.start = b.queuedBytes
	if p.client != nil {
		p.client.outstanding++
		b.addOrder(&p)
		if !b.measuring && p.kind <= function {
			b.measuring, b.sampleStart, b.sampleTime = true, p.start, b.loop.now
		}
	}
	b.replies.push(p)
}

// appended records that n bytes were appended to out since push.
func (b *backend) appended(n int) {
	b.queuedBytes += uint64(n)
	b.scheduleFlush()
	if b.unreachable() {
		b.failAll()
	}
}

// send queues a command with its pending reply.
func (b *backend) send(p pending, command []byte) {
	b.push(p)
	b.out = append(b.out, command...)
	b.appended(len(command))
}

// command returns pending command i with its arguments. It is valid until out changes.
func (b *backend) command(i int) []byte {
	end := b.queuedBytes
	if i+1 < b.replies.n {
		end = b.replies.at(i + 1).start
	}
	first := b.queuedBytes - uint64(len(b.out))
	return b.out[b.replies.at(i).start-first : end-first]
}

// requeue queues a command that has been pending on another connection.
func (b *backend) requeue(p pending, command []byte) {
	b.endBatch()
	p.start = b.queuedBytes
	b.replies.push(p)
	b.out = append(b.out, command...)
	b.appended(len(command))
}

// scheduleFlush makes the loop write the queued bytes at the end of the round.
func (b *backend) scheduleFlush() {
	if !b.dirty && b.state == up {
		b.dirty = true
		b.loop.dirtyBackends = append(b.loop.dirtyBackends, b)
	}
}

func (b *backend) flush() {
	if b.state != up {
		return
	}
	b.endBatch()
	for b.sent < len(b.out) {
		n, err := eventloop.WriteSocket(b.fd, b.out[b.sent:])
		if n > 0 {
			b.sent += n
		}
		if errors.Is(err, eventloop.ErrAgain) {
			break
		}
		if err != nil {
			b.lost(err)
			return
		}
	}
	b.dropSent()
	if b.halfClosed && b.sent == len(b.out) {
		eventloop.ShutdownWrite(b.fd)
	}
	b.setInterest(b.sent < len(b.out))
	if len(b.out)-b.sent < backendPause {
		b.resumeClients()
	}
}

// dropSent drops the bytes at the beginning of out that were sent and are not needed any more. A
// command that may have to go to another primary is needed until its reply has come.
func (b *backend) dropSent() {
	n := b.sent
	if b.primary != "" && b.replies.n > 0 {
		answered := len(b.out) - int(b.queuedBytes-b.replies.front().start)
		n = min(n, answered) // Redis answers a command before its end if it closes the connection
	}
	switch {
	case n == len(b.out):
		b.out, b.sent = b.out[:0], 0
		if cap(b.out) > keptBuffer || b.owner != nil {
			b.out = nil
		}
	case n > keptBuffer && n > len(b.out)/2:
		b.out = append(b.out[:0], b.out[n:]...)
		b.sent -= n
	}
}

// setInterest sets whether the loop also waits until the socket is writable.
func (b *backend) setInterest(writable bool) {
	interest := uint32(eventloop.EventRead | eventloop.EventHalfClose)
	if writable {
		interest |= eventloop.EventWrite
	}
	if interest != b.interest {
		b.interest = interest
		if err := b.loop.poll.Change(b.fd, interest); err != nil {
			b.lost(err)
		}
	}
}

func (b *backend) full() bool { return len(b.out)-b.sent >= backendPause }

func (b *backend) resumeClients() {
	waiting := b.pausedClients
	b.pausedClients = nil
	for _, c := range waiting {
		c.waitsForBackend = false
		c.resumeIfBelowLimit()
	}
}

func (b *backend) handleEvents(events uint32) {
	if events&eventloop.EventWrite != 0 {
		b.flush()
	}
	if events&(eventloop.EventRead|eventloop.EventHalfClose|eventloop.EventClose) != 0 && b.state == up {
		b.receive()
	}
}

func (b *backend) receive() {
	buf := b.loop.replies
	if len(b.partialLine) > len(buf)/2 {
		buf = make([]byte, len(b.partialLine)+len(buf))
	}
	have := copy(buf, b.partialLine)
	n, err := eventloop.ReadSocket(b.fd, buf[have:])
	switch {
	case errors.Is(err, eventloop.ErrAgain):
		return
	case err != nil:
		b.lost(err)
		return
	case n == 0:
		b.lost(io.EOF)
		return
	}
	if err := b.readReplies(buf[:have+n]); err != nil {
		b.lost(err)
	}
}

// readReplies passes each reply in buf to the client that waits for it.
func (b *backend) readReplies(buf []byte) error {
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
				b.begin(b.replies.front())
				c.deliver(piece)
				c.replies.current = nil
			}
			if done {
				b.inReply = false
				b.completed()
			}
		case done:
			if len(b.partialReply) > 0 || b.dropping {
				b.collect(piece)
				piece = b.partialReply
			}
			b.inReply = false
			switch {
			case b.state != up:
			case b.dropping:
				b.endDropped()
			default:
				b.handleReply(piece)
			}
			if cap(b.partialReply) > eventloop.BufferSize {
				b.partialReply = nil
			}
			b.partialReply = b.partialReply[:0]
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
		return upstream.ErrReplica
	}
	b.partialLine = append(b.partialLine[:0], buf[pos:]...)
	if len(b.partialLine) == 0 && cap(b.partialLine) > eventloop.BufferSize {
		b.partialLine = nil
	}
	return nil
}

// collect stores a piece of a reply that is not streamed. If the reply exceeds the client's
// OutputBytes, collect disconnects the client at once, as happens with streamed replies: the
// complete reply would be in memory several times.
func (b *backend) collect(piece []byte) {
	if b.dropping {
		return
	}
	c := b.owner
	if c == nil && b.replies.n > 0 && b.replies.front().batchSize < 2 { // replies to several writes in one call are short
		c = b.replies.front().client
	}
	if c == nil || int64(len(b.partialReply)+len(piece)) <= b.loop.cfg.Limits.OutputBytes {
		b.partialReply = append(b.partialReply, piece...)
		return
	}
	b.partialReply, b.dropping = nil, true
	if !c.closed {
		b.loop.proxy.metrics.slowClients.Inc()
		c.close()
	}
}

// endDropped ends a reply that was too large for its client.
func (b *backend) endDropped() {
	b.dropping = false
	b.opened = false // the dropped reply may have said that the library is not open
	if p := b.replies.front(); p.kind == handled && p.then.replies > 1 {
		p.then.replies--
		return
	}
	b.completed()
}

// beginReply decides how to handle a reply, by its first byte and by the pending command.
func (b *backend) beginReply(first byte) error {
	b.inReply = true
	b.streaming = false
	if b.replies.n == 0 {
		if b.onPush == nil {
			return errUnexpectedReply
		}
		return nil
	}
	p := b.replies.front()
	b.streaming = p.kind == relayed && first != '>' && p.client != nil &&
		p.client.subs == nil && // no message may be within a reply
		// A redirection is not for the client, and handleRefusal may discard the reply.
		(b.primary == "" || first != '-' && len(p.client.refused) == 0)
	return nil
}

// handleReply handles a complete reply that was not streamed.
func (b *backend) handleReply(reply []byte) {
	if reply[0] == '>' {
		if b.onPush != nil {
			b.onPush(reply)
		}
		return
	}
	if b.replies.n == 0 {
		b.lost(errUnexpectedReply)
		return
	}
	if b.primary != "" && b.handleRefusal(reply) {
		return
	}
	p := b.replies.front()
	b.begin(p)
	switch p.kind {
	case function:
		if p.batchSize > 1 {
			b.deliverBatch(int(p.batchSize), reply)
			return
		}
		b.checkReadOnly(reply)
		p.client.deliver(replies.FromFunction(p.cmd, p.emptyArray, reply, b.proto))
	case published:
		b.checkReadOnly(reply)
		p.client.handlePublished(p, reply, b.proto)
	case handled:
		then := p.then
		last := then.replies <= 1
		if then.endMark {
			last = reply[0] == '%'
		}
		if !last {
			then.replies--
		}
		then.onReply(reply)
		if !last && p.client != nil {
			p.client.replies.current = nil
		}
		if !last || b.state == discarded || b.replies.n == 0 {
			return
		}
	case relayed, proxyAnswer:
		if p.client != nil {
			p.client.deliver(reply)
		}
	}
	b.completed()
}

// checkReadOnly checks for a READONLY error: this Redis has become a replica, and readReplies then
// ends the connection.
func (b *backend) checkReadOnly(reply []byte) {
	if reply[0] == '-' && bytes.HasPrefix(reply, []byte("-READONLY")) {
		b.demoted = true
	}
}

// completed removes the first pending reply, and delivers the proxy's own answers that were queued
// after it.
func (b *backend) completed() {
	for {
		p := *b.replies.front()
		b.replies.pop()
		if b.measuring && p.start >= b.sampleStart {
			b.measuring = false
			b.loop.proxy.metrics.latency.Observe(b.loop.now.Sub(b.sampleTime).Seconds())
		}
		if p.client != nil {
			p.client.pendingDone(&p)
		}
		if b.replies.n == 0 && b.primary != "" {
			b.dropSent()
		}
		if b.replies.n == 0 || b.replies.front().kind != proxyAnswer {
			return
		}
		next := b.replies.front()
		b.deliverAnswer(next, next.then.answer)
	}
}

func (b *backend) deliverAnswer(p *pending, answer []byte) {
	if p.client != nil {
		p.client.answerBytes -= len(answer)
		p.client.deliver(answer)
	}
}
