package proxy

import (
	"errors"
	"net"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// readAhead is how many bytes of commands that have to wait a client may have sent before the loop
// stops reading from it. From this size on, the loop also removes what is sent from the front of
// the client's replies.
const readAhead = 64 << 10

// client is a connection of an application. Only its loop may use it.
type client struct {
	loop      *loop
	fd        int
	id        uint64
	addr      string
	localAddr string // the local address of the connection

	// backend is the connection to Redis for its commands: the one that clients of its db and
	// protocol share, or its own. In front of a Redis Cluster it is the shared one of the last command.
	backend        *backend
	dedicated      *dedicatedConnections // besides backend; nil: none yet
	outstanding    int                   // number of pending replies
	replies        orderedReplies
	slot           int              // in front of a Redis Cluster: of the keys of the command that is executed, or noSlot or manySlots
	slotsAt        uint64           // loop.slotsAt when it last sent a command
	waiting        int              // number of its pending replies to commands that had to wait for the cluster
	refused        []refusedCommand // commands that wait until they are sent again
	retryScheduled bool             // refused will be sent again
	firstRetried   struct {         // which of them was the first when they were last sent again
		place uint64
		slot  int
	}
	openSince    time.Time // since when a script has waited until a Sonic opens its primary
	answerBytes  int       // bytes of the proxy's own answers that wait for earlier replies
	replySize    int64     // of the present reply so far
	averageReply int64     // moving average of the size of replies

	in     []byte // input; the part from inAt on has not been run yet
	inAt   int
	parser *resp.Parser // of a command that has not arrived completely, or nil
	out    []byte       // replies; the part from sent on is unsent
	sent   int

	db         int
	proto      int
	mode       []byte          // first argument of functions, as a bulk string
	user       *access.Account // nil until it has logged in
	name       []byte
	created    time.Time
	last       time.Time // time of the last read or write
	login      *eventloop.Timer
	idle       *eventloop.Timer
	drainTimer *eventloop.Timer

	tx              *transaction        // not nil between MULTI and EXEC
	watch           bool                // WATCH was sent on its own connection
	subs            *subscriptions      // Pub/Sub on its own connections
	blocked         *blockedCommand     // a blocking command that the client waits for
	blockingInRedis int                 // number of commands in flight that block in Redis itself
	busy            bool                // a command is running that must end before the next one begins
	unpublished     *unpublishedReplies // replies that wait until the broker has stored their effects

	interest        uint32
	dirty           bool   // in loop.dirtyClients
	queued          bool   // in loop.ready
	scriptRefusal   string // why the next script may not run; "" if it may
	stalled         bool   // the next command waits until no reply is pending
	paused          bool   // too many replies are pending
	waitsForBackend bool   // in backend.pausedClients
	halfClosed      bool   // it sends no more, but the proxy has not read everything yet
	eof             bool   // it sends no more, and the proxy has read everything
	closing         bool   // it is closed once it has all its replies
	closed          bool
}

func newClient(l *loop, fd int, id uint64, addr, localAddr net.Addr) *client {
	c := &client{
		loop: l, fd: fd, id: id, addr: addressOf(addr), localAddr: addressOf(localAddr),
		db: l.cfg.Backend.DB, proto: 2, interest: eventloop.EventRead | eventloop.EventHalfClose, created: l.now, last: l.now,
	}
	c.setMode()
	return c
}

func addressOf(a net.Addr) string {
	if a == nil || a.String() == "" {
		return "/:0"
	}
	return a.String()
}

// begin sets up a new client.
func (c *client) begin() {
	c.user = c.loop.proxy.users.Load().Initial
	if c.loop.cfg.Limits.IdleTimeout > 0 {
		c.idle = c.loop.timers.Start(c.loop.now.Add(c.loop.cfg.Limits.IdleTimeout), c.closeIdle)
	}
	if c.user == nil {
		c.login = c.loop.timers.Start(c.loop.now.Add(c.loop.cfg.Limits.AuthTimeout), c.close)
	}
}

// closeIdle closes a client that has neither sent nor taken anything for too long. As in Redis, a
// client that waits for a reply or a message is not idle.
func (c *client) closeIdle() {
	until := c.last.Add(c.loop.cfg.Limits.IdleTimeout)
	waits := c.blocked != nil || c.busy || c.unpublished != nil || c.blockingInRedis > 0 || c.outstanding > 0
	if waits || c.queued || c.dirty || c.subs != nil && c.subs.count() > 0 {
		until = c.loop.now.Add(c.loop.cfg.Limits.IdleTimeout)
	}
	if !until.After(c.loop.now) {
		c.close()
		return
	}
	c.idle = c.loop.timers.Start(until, c.closeIdle)
}

func (c *client) handleEvents(events uint32) {
	if events&eventloop.EventWrite != 0 {
		c.flush()
	}
	switch {
	case c.closed:
	case events&eventloop.EventClose != 0:
		c.close()
	case events&eventloop.EventRead != 0:
		c.receive()
	case events&eventloop.EventHalfClose != 0:
		c.handleHalfClose()
	}
}

func (c *client) receive() {
	l := c.loop
	c.last = l.now
	if len(c.in) == 0 {
		n, err := eventloop.ReadSocket(c.fd, l.read)
		if !c.received(n, err) {
			return
		}
		used := c.consume(l.read[:n])
		if used < n && !c.closed {
			c.in, c.inAt = append(l.buffers.Get(), l.read[used:n]...), 0
		}
		c.afterRead()
		return
	}
	c.growInput()
	n, err := eventloop.ReadSocket(c.fd, c.in[len(c.in):cap(c.in)])
	if !c.received(n, err) {
		return
	}
	c.in = c.in[:len(c.in)+n]
	c.resume()
}

// received reports whether a read returned data. It handles errors and the end of the stream.
func (c *client) received(n int, err error) bool {
	switch {
	case errors.Is(err, eventloop.ErrAgain):
		return false
	case err != nil:
		c.close()
		return false
	case n == 0:
		c.handleEOF()
		return false
	}
	return true
}

// growInput makes room for the rest of a command. It grows the buffer by at most the number of
// bytes that have arrived, so that a client cannot claim memory just by announcing a long argument.
func (c *client) growInput() {
	if c.inAt > 0 {
		c.in = append(c.in[:0], c.in[c.inAt:]...)
		c.inAt = 0
	}
	free := cap(c.in) - len(c.in)
	want := max(clientReadSize/4, len(c.in)/2) // proportional growth, so that all copying together stays proportional to the input
	if c.parser != nil {
		want = max(want, min(c.parser.Missing(len(c.in)), len(c.in)))
	}
	if free < want && free < clientReadSize/4 {
		grown := make([]byte, len(c.in), len(c.in)+want)
		copy(grown, c.in)
		c.loop.buffers.Put(c.in)
		c.in = grown
	}
}

// resume runs the commands that were already read.
func (c *client) resume() {
	if c.closed {
		return
	}
	if len(c.in) > c.inAt {
		c.inAt += c.consume(c.in[c.inAt:])
	}
	if c.closed {
		return
	}
	if c.inAt >= len(c.in) {
		c.dropInput()
	}
	c.afterRead()
}

func (c *client) dropInput() {
	if c.in != nil {
		c.loop.buffers.Put(c.in)
		c.in, c.inAt = nil, 0
	}
}

// afterRead sets the events that the loop waits for. It closes a client whose wait may never end,
// and schedules the end of one that has all its replies.
func (c *client) afterRead() {
	if c.closed {
		return
	}
	if c.waitMayNeverEnd() {
		c.close()
		return
	}
	if c.readyToClose() {
		c.scheduleFlush()
	}
	c.updateInterest()
}

func (c *client) inputEnded() bool { return c.eof || c.halfClosed }

// waitMayNeverEnd reports whether a client that sends no more waits for something that may never
// happen. As in Redis, such a client is closed. A try of a blocking pop that is in flight may still
// return an element.
func (c *client) waitMayNeverEnd() bool {
	if !c.inputEnded() {
		return false
	}
	_, writes := c.loop.waitingWriters[c]
	return writes || c.blocked != nil && !c.blocked.running || c.subs != nil || c.blockingInRedis > 0 && !c.halfCloseBlocking()
}

// closeAfterDrainTimeout closes a client that sends no more if its replies still wait for Pulsar
// after DrainTimeout: the client may not exist any more.
func (c *client) closeAfterDrainTimeout() {
	if c.drainTimer != nil || !c.loop.cfg.AckPublished {
		return
	}
	c.drainTimer = c.loop.timers.Start(c.loop.now.Add(c.loop.cfg.DrainTimeout), func() {
		c.drainTimer = nil
		if c.unpublished != nil {
			c.close()
			return
		}
		c.closeAfterDrainTimeout()
	})
}

// runnable reports whether the next command may begin.
func (c *client) runnable() bool {
	return !c.closed && !c.closing && !c.stalled && !c.paused && !c.busy && c.blocked == nil
}

// consume runs the commands at the beginning of b and returns how much of it they took.
func (c *client) consume(b []byte) (used int) {
	l := c.loop
	parser := c.parser
	if parser == nil {
		parser = l.parser
	}
	for used < len(b) && c.runnable() {
		n, err := parser.Next(b[used:], l.proxy.limitsOf(c))
		if err != nil {
			c.protocolError(err)
			return len(b)
		}
		if n == 0 {
			break
		}
		if len(parser.Args) > 0 && !c.execute(request.Request{Raw: parser.Raw(b[used:]), Args: parser.Args}) {
			c.stalled = c.outstanding > 0
			break
		}
		used += n
		c.pauseIfAboveLimit()
	}
	switch {
	case c.closed:
		parser.Reset()
	case parser.Partial():
		if c.parser == nil {
			c.parser, l.parser = parser, new(resp.Parser)
		}
	case c.parser != nil:
		c.parser = nil
	}
	if !parser.Partial() {
		parser.Reset()
	}
	return used
}

func (c *client) protocolError(err error) {
	if !errors.Is(err, resp.ErrTooLong) {
		c.reply(resp.AppendError(nil, err.Error()))
	}
	c.closeAfterReplies()
}

// closeAfterReplies makes the proxy close the client once it has all its replies.
func (c *client) closeAfterReplies() {
	c.closing = true
	c.scheduleFlush()
}

// aboveLimit reports whether the loop must stop running the client's commands: too many replies are
// pending or unsent, or the connection to Redis has too much to send.
func (c *client) aboveLimit() bool {
	limits, pause := &c.loop.cfg.Limits, c.outputPause()
	return c.outstanding >= limits.Pipeline || int64(c.outstanding)*c.averageReply >= pause || c.unsent() >= pause ||
		c.backend != nil && c.backend.full()
}

// belowResumeLimit reports whether the loop may run the commands of a paused client again. Its
// limits of replies are half of those of aboveLimit, so that the loop reads much at a time. The
// limit of the connection to Redis is the same.
func (c *client) belowResumeLimit() bool {
	limits, pause := &c.loop.cfg.Limits, c.outputPause()
	return c.outstanding <= limits.Pipeline/2 && int64(c.outstanding)*c.averageReply <= pause/2 && c.unsent() <= pause/2 &&
		(c.backend == nil || !c.backend.full())
}

// loginPause is outputPause for clients that have not logged in: they get only short errors.
const loginPause = 16 << 10

// outputPause returns how many bytes of replies may wait before the loop stops reading commands.
func (c *client) outputPause() int64 {
	if c.user == nil {
		return min(loginPause, c.loop.cfg.Limits.OutputPause)
	}
	return c.loop.cfg.Limits.OutputPause
}

func (c *client) unsent() int64 {
	n := len(c.out) - c.sent + c.answerBytes + c.replies.bytes
	if c.unpublished != nil {
		n += len(c.unpublished.data)
	}
	return int64(n)
}

func (c *client) pauseIfAboveLimit() {
	if !c.aboveLimit() {
		return
	}
	c.paused = true
	c.awaitBackend()
}

// resumeIfBelowLimit resumes a paused client if few enough replies are pending.
func (c *client) resumeIfBelowLimit() {
	switch {
	case !c.paused:
	case c.belowResumeLimit():
		c.paused = false
		c.enqueue()
	default:
		c.awaitBackend()
	}
}

// awaitBackend makes the client's connection to Redis call resumeIfBelowLimit once it has sent its
// queued bytes.
func (c *client) awaitBackend() {
	if c.backend != nil && c.backend.full() && !c.waitsForBackend {
		c.waitsForBackend = true
		c.backend.pausedClients = append(c.backend.pausedClients, c)
	}
}

// enqueue makes the loop run the commands that were already read.
func (c *client) enqueue() {
	if !c.queued && !c.closed {
		c.queued = true
		c.loop.ready = append(c.loop.ready, c)
	}
}

func (c *client) replyDone() {
	c.outstanding--
	if c.closed {
		return
	}
	c.averageReply += (c.replySize - c.averageReply) / 8
	c.replySize = 0
	if c.outstanding == 0 && c.stalled {
		c.stalled = false
		c.enqueue()
	}
	if c.paused {
		c.resumeIfBelowLimit()
	}
	if c.outstanding == 0 && (c.closing || c.eof || c.loop.draining) {
		c.scheduleFlush()
	}
}

func (c *client) commandDone() {
	c.busy = false
	c.enqueue()
}

// reply answers a command, after the replies of earlier commands. It returns true, as a handler does.
func (c *client) reply(answer []byte) bool {
	switch {
	case c.outstanding == 0:
		c.deliver(answer)
	case c.loop.slots != nil:
		c.addAnswer(answer)
	default:
		c.answerBytes += len(answer)
		c.backend.push(pending{client: c, kind: proxyAnswer, then: &replyHandler{answer: answer}})
	}
	return true
}

// replyError answers with an error. text begins with its code.
func (c *client) replyError(text string) bool { return c.reply(resp.AppendError(nil, text)) }

func (c *client) replyOK() bool { return c.reply([]byte(replyOK)) }

// deliver appends a part of the reply that is next in order to what the client gets. It closes the
// client if that exceeds OutputBytes. The caller may reuse piece afterwards.
func (c *client) deliver(piece []byte) {
	if c.closed || len(piece) == 0 {
		return
	}
	c.replySize += int64(len(piece))
	if c.replies.store(piece) {
		c.closeIfSlow()
		return
	}
	if c.unpublished != nil {
		c.unpublished.data = append(c.unpublished.data, piece...) // it waits only for earlier replies
	} else {
		if c.out == nil {
			c.out = c.loop.buffers.Get()
		}
		c.out = append(c.out, piece...)
		c.scheduleFlush()
	}
	c.closeIfSlow()
}

// closeIfSlow closes the client if its unread replies exceed OutputBytes.
func (c *client) closeIfSlow() {
	if c.unsent() > c.loop.cfg.Limits.OutputBytes {
		c.loop.proxy.metrics.slowClients.Inc()
		c.close()
	}
}

// scheduleFlush makes the loop write the client's replies at the end of the round.
func (c *client) scheduleFlush() {
	if !c.dirty && !c.closed {
		c.dirty = true
		c.loop.dirtyClients = append(c.loop.dirtyClients, c)
	}
}

func (c *client) flush() {
	if c.closed {
		return
	}
	for c.sent < len(c.out) {
		n, err := eventloop.WriteSocket(c.fd, c.out[c.sent:])
		if n > 0 {
			c.sent += n
			c.last = c.loop.now
		}
		if errors.Is(err, eventloop.ErrAgain) {
			break
		}
		if err != nil {
			c.close()
			return
		}
	}
	switch {
	case c.sent == len(c.out):
		if c.out != nil {
			c.loop.buffers.Put(c.out)
		}
		c.out, c.sent = nil, 0
		if c.readyToClose() {
			c.close()
			return
		}
	case c.sent > readAhead && c.sent > len(c.out)/2:
		c.out = append(c.out[:0], c.out[c.sent:]...)
		c.sent = 0
	}
	c.resumeIfBelowLimit()
	c.updateInterest()
}

// readyToClose reports whether a client that is to be closed has all its replies.
func (c *client) readyToClose() bool {
	if !c.closing && !c.eof && !c.loop.draining || c.outstanding > 0 || len(c.out) > c.sent || c.unpublished != nil {
		return false
	}
	return c.closing || !c.queued && !c.stalled && !c.paused && !c.busy && c.blocked == nil && (c.eof || c.tx == nil)
}

// drain closes a client when the service stops: at once, or after its commands in flight.
func (c *client) drain() {
	if c.blocked != nil || c.subs != nil || c.outstanding == 0 {
		c.closing = true
	}
	if c.blocked != nil || c.blockingInRedis > 0 {
		c.close()
		return
	}
	c.scheduleFlush()
}

// handleHalfClose records that the client sends no more. The proxy may not have read all its data
// yet, and finds their end by reading.
func (c *client) handleHalfClose() {
	c.halfClosed = true
	if c.waitMayNeverEnd() {
		c.close()
		return
	}
	c.closeAfterDrainTimeout()
	c.updateInterest()
}

// handleEOF records that the client sends no more, and that the proxy has read everything. The
// client still gets pending replies, but cannot wait in a blocking command or for messages.
func (c *client) handleEOF() {
	c.eof = true
	if c.waitMayNeverEnd() || c.readyToClose() {
		c.close()
		return
	}
	c.closeAfterDrainTimeout()
	c.updateInterest()
}

// updateInterest sets the events of the socket that the loop waits for.
func (c *client) updateInterest() {
	var interest uint32
	if !c.eof {
		if !c.halfClosed {
			interest = eventloop.EventHalfClose
		}
		if c.runnable() || len(c.in)-c.inAt < readAhead && !c.closing && !c.paused {
			interest |= eventloop.EventRead
		}
	}
	if c.sent < len(c.out) {
		interest |= eventloop.EventWrite
	}
	if interest != c.interest {
		c.interest = interest
		if err := c.loop.poll.Change(c.fd, interest); err != nil {
			c.close()
		}
	}
}

// close ends the connection at once. The proxy drops later replies for it.
func (c *client) close() {
	if c.closed {
		return
	}
	c.closed = true
	l := c.loop
	l.release(c.fd)
	delete(l.clients, c.id)
	l.proxy.clients.Add(-1)
	l.timers.Stop(c.login)
	l.timers.Stop(c.idle)
	l.timers.Stop(c.drainTimer)
	c.dropInput()
	if c.out != nil {
		l.buffers.Put(c.out)
		c.out = nil
	}
	c.parser, c.tx, c.unpublished, c.replies, c.refused = nil, nil, nil, orderedReplies{}, nil
	delete(l.waitingWriters, c)
	if c.blocked != nil {
		c.blocked.cancel()
	}
	c.changeBlockingInRedis(-c.blockingInRedis)
	if c.backend != nil && c.backend.owner == c {
		c.backend.discard()
	}
	c.dedicated.discard()
}
