package proxy

import (
	"errors"
	"net"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// readAhead bounds what is read of a client whose commands have to wait.
const readAhead = 64 << 10

// client is a connection of an application. It belongs to its loop.
type client struct {
	l    *loop
	fd   int
	id   uint64
	addr string
	here string // the endpoint's address

	// b is where its commands go: the connection that clients of its db and protocol share, or its own.
	b           *backend
	outstanding int   // replies that are due
	answers     int   // bytes of the proxy's own replies that wait their turn
	size        int64 // of the reply that is coming
	usual       int64 // size of replies, a moving average

	in     []byte // what was read and not run yet: from inAt
	inAt   int
	parser *resp.Parser // of a command that is not whole; nil when there is none
	out    []byte       // replies; from sent
	sent   int

	db      int
	proto   int
	mode    []byte // first argument of functions, as a bulk string
	user    *user  // nil until it has logged in
	name    []byte
	created time.Time
	last    time.Time // last time something was read or written
	login   *timer
	idle    *timer
	lingers *timer

	tx       *transaction   // between MULTI and EXEC
	watch    bool           // WATCH was sent on its own connection
	track    bool           // CLIENT TRACKING is on on its own connection
	subs     *subscriptions // Pub/Sub on its own connection
	wait     *waiting       // a blocking command
	blocking int            // commands under way that Redis itself lets wait
	busy     bool           // a command runs that must end before the next one begins
	held     *heldReplies   // replies that wait until the broker has what they are about

	interest uint32
	dirty    bool   // in loop.dirtyClients
	queued   bool   // in loop.ready
	refused  string // why the script that comes next may not run; "" when it may
	stalled  bool   // the next command waits until nothing is due
	paused   bool   // too much is due
	parked   bool   // in backend.waiting
	ending   bool   // it sends no more, but not all that it sent was read
	eof      bool   // it sends no more
	leaving  bool   // it is closed when it has all replies
	closed   bool
}

func newClient(l *loop, fd int, id uint64, addr, here net.Addr) *client {
	c := &client{
		l: l, fd: fd, id: id, addr: addressOf(addr), here: addressOf(here),
		db: l.cfg.Backend.DB, proto: 2, interest: eventRead | eventHalfEnd, created: l.now, last: l.now,
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

// begin sets up a client that has just come.
func (c *client) begin() {
	c.user = c.l.p.users.Load().first
	if c.l.cfg.Limits.IdleTimeout > 0 {
		c.idle = c.l.timers.start(c.l.now.Add(c.l.cfg.Limits.IdleTimeout), c.closeIdle)
	}
	if c.user == nil {
		c.login = c.l.timers.start(c.l.now.Add(c.l.cfg.Limits.AuthTimeout), c.close)
	}
}

// closeIdle closes a client that has sent nothing for too long. As in Redis one that waits for something is not idle.
func (c *client) closeIdle() {
	until := c.last.Add(c.l.cfg.Limits.IdleTimeout)
	waits := c.wait != nil || c.busy || c.held != nil || c.blocking > 0 || c.outstanding > 0
	if waits || c.queued || c.dirty || c.subs != nil && c.subs.count() > 0 {
		until = c.l.now.Add(c.l.cfg.Limits.IdleTimeout)
	}
	if !until.After(c.l.now) {
		c.close()
		return
	}
	c.idle = c.l.timers.start(until, c.closeIdle)
}

func (c *client) happened(what uint32) {
	if what&eventWrite != 0 {
		c.flush()
	}
	switch {
	case c.closed:
	case what&eventEnd != 0:
		c.close()
	case what&eventRead != 0:
		c.receive()
	case what&eventHalfEnd != 0:
		c.halfEnded()
	}
}

func (c *client) receive() {
	l := c.l
	c.last = l.now
	if len(c.in) == 0 {
		n, err := readSocket(c.fd, l.read)
		if !c.received(n, err) {
			return
		}
		used := c.consume(l.read[:n])
		if used < n && !c.closed {
			c.in, c.inAt = append(l.buffers.get(), l.read[used:n]...), 0
		}
		c.settle()
		return
	}
	c.growInput()
	n, err := readSocket(c.fd, c.in[len(c.in):cap(c.in)])
	if !c.received(n, err) {
		return
	}
	c.in = c.in[:len(c.in)+n]
	c.resume()
}

// received reports whether a read brought something.
func (c *client) received(n int, err error) bool {
	switch {
	case errors.Is(err, errAgain):
		return false
	case err != nil:
		c.close()
		return false
	case n == 0:
		c.ended()
		return false
	}
	return true
}

// growInput makes room for more of a command: as much as was told, but never more than twice what has come, so that a
// client that only promises gets no memory.
func (c *client) growInput() {
	if c.inAt > 0 {
		c.in = append(c.in[:0], c.in[c.inAt:]...)
		c.inAt = 0
	}
	room := cap(c.in) - len(c.in)
	want := max(clientReadSize/4, len(c.in)/2) // by parts of what has come: what is copied in all stays in proportion
	if c.parser != nil {
		want = max(want, min(c.parser.Missing(len(c.in)), len(c.in)))
	}
	if room < want && room < clientReadSize/4 {
		grown := make([]byte, len(c.in), len(c.in)+want)
		copy(grown, c.in)
		c.l.buffers.put(c.in)
		c.in = grown
	}
}

// resume runs what was read already.
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
	c.settle()
}

func (c *client) dropInput() {
	if c.in != nil {
		c.l.buffers.put(c.in)
		c.in, c.inAt = nil, 0
	}
}

// settle sets what the loop waits for, and closes a client that is through.
func (c *client) settle() {
	if c.closed {
		return
	}
	if c.vain() {
		c.close()
		return
	}
	if c.through() {
		c.touch()
	}
	c.watchSocket()
}

// gone reports whether the client sends no more.
func (c *client) gone() bool { return c.eof || c.ending }

// vain reports whether a client that sends no more waits for what may never come: as in Redis it is closed. A try of a blocking pop that is under way
// may still bring something.
func (c *client) vain() bool {
	if !c.gone() {
		return false
	}
	_, writes := c.l.heldWriters[c]
	return writes || c.wait != nil && !c.wait.running || c.subs != nil || c.blocking > 0
}

// linger closes a client that sends no more when replies that Pulsar holds up have not come in time: nobody may be there to read them.
func (c *client) linger() {
	if c.lingers != nil || c.l.cfg.Ack != AckPublished {
		return
	}
	c.lingers = c.l.timers.start(c.l.now.Add(c.l.cfg.DrainTimeout), func() {
		c.lingers = nil
		if c.held != nil {
			c.close()
			return
		}
		c.linger()
	})
}

// runnable reports whether the next command may begin.
func (c *client) runnable() bool {
	return !c.closed && !c.leaving && !c.stalled && !c.paused && !c.busy && c.wait == nil
}

// consume runs the commands at the beginning of b and returns how much of it they took.
func (c *client) consume(b []byte) (used int) {
	l := c.l
	parser := c.parser
	if parser == nil {
		parser = l.parser
	}
	for used < len(b) && c.runnable() {
		n, err := parser.Next(b[used:], l.p.limitsOf(c))
		if err != nil {
			c.protocolError(err)
			return len(b)
		}
		if n == 0 {
			break
		}
		if len(parser.Args) > 0 && !c.execute(request{raw: parser.Raw(b[used:]), args: parser.Args}) {
			c.stalled = c.outstanding > 0
			break
		}
		used += n
		c.pauseIfFull()
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
	c.leave()
}

// leave closes the client once it has all its replies.
func (c *client) leave() {
	c.leaving = true
	c.touch()
}

// full reports whether so much is due that nothing more should be read.
func (c *client) full() bool {
	limits, pause := &c.l.cfg.Limits, c.outputPause()
	return c.outstanding >= limits.Pipeline || int64(c.outstanding)*c.usual >= pause || c.unsent() >= pause || c.b != nil && c.b.full()
}

// relaxed reports whether so little is due that more should be read: less than full, so that much is read at a time.
func (c *client) relaxed() bool {
	limits, pause := &c.l.cfg.Limits, c.outputPause()
	return c.outstanding <= limits.Pipeline/2 && int64(c.outstanding)*c.usual <= pause/2 && c.unsent() <= pause/2 && (c.b == nil || !c.b.full())
}

// loginPause is outputPause of clients that have not logged in: they get nothing but short errors.
const loginPause = 16 << 10

// outputPause is how much may be due before nothing more is read, in bytes.
func (c *client) outputPause() int64 {
	if c.user == nil {
		return min(loginPause, c.l.cfg.Limits.OutputPause)
	}
	return c.l.cfg.Limits.OutputPause
}

func (c *client) unsent() int64 {
	n := len(c.out) - c.sent + c.answers
	if c.held != nil {
		n += len(c.held.data)
	}
	return int64(n)
}

func (c *client) pauseIfFull() {
	if !c.full() {
		return
	}
	c.paused = true
	c.awaitRoom()
}

// relax lets a client go on that had too much due.
func (c *client) relax() {
	switch {
	case !c.paused:
	case c.relaxed():
		c.paused = false
		c.enqueue()
	default:
		c.awaitRoom()
	}
}

// awaitRoom has the client's connection to Redis call relax once it has sent what waits.
func (c *client) awaitRoom() {
	if c.b != nil && c.b.full() && !c.parked {
		c.parked = true
		c.b.waiting = append(c.b.waiting, c)
	}
}

// enqueue has the loop run what was read already.
func (c *client) enqueue() {
	if !c.queued && !c.closed {
		c.queued = true
		c.l.ready = append(c.l.ready, c)
	}
}

// replied notes that a reply came.
func (c *client) replied() {
	c.outstanding--
	if c.closed {
		return
	}
	c.usual += (c.size - c.usual) / 8
	c.size = 0
	if c.outstanding == 0 && c.stalled {
		c.stalled = false
		c.enqueue()
	}
	if c.paused {
		c.relax()
	}
	if c.outstanding == 0 && (c.leaving || c.eof || c.l.draining) {
		c.touch()
	}
}

// reply answers a command, behind the replies that are due before.
func (c *client) reply(answer []byte) {
	if c.outstanding == 0 {
		c.deliver(answer)
		return
	}
	c.answers += len(answer)
	c.b.push(pending{client: c, kind: local, then: &handling{answer: answer}})
}

// replyError answers with an error. text begins with its code.
func (c *client) replyError(text string) { c.reply(resp.AppendError(nil, text)) }

// deliver sends a part of a reply whose turn it is. piece may be reused afterwards.
func (c *client) deliver(piece []byte) {
	if c.closed || len(piece) == 0 {
		return
	}
	c.size += int64(len(piece))
	if c.held != nil {
		c.held.append(piece)
	} else {
		if c.out == nil {
			c.out = c.l.buffers.get()
		}
		c.out = append(c.out, piece...)
		c.touch()
	}
	if c.unsent() > c.l.cfg.Limits.OutputBytes {
		c.l.p.metrics.slowClients.Inc()
		c.close()
	}
}

// touch has the loop write what the client is to get at the end of the round.
func (c *client) touch() {
	if !c.dirty && !c.closed {
		c.dirty = true
		c.l.dirtyClients = append(c.l.dirtyClients, c)
	}
}

func (c *client) flush() {
	if c.closed {
		return
	}
	for c.sent < len(c.out) {
		n, err := writeSocket(c.fd, c.out[c.sent:])
		if n > 0 {
			c.sent += n
			c.last = c.l.now
		}
		if errors.Is(err, errAgain) {
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
			c.l.buffers.put(c.out)
		}
		c.out, c.sent = nil, 0
		if c.through() {
			c.close()
			return
		}
	case c.sent > readAhead && c.sent > len(c.out)/2:
		c.out = append(c.out[:0], c.out[c.sent:]...)
		c.sent = 0
	}
	c.relax()
	c.watchSocket()
}

// through reports whether a client that leaves has had all its replies.
func (c *client) through() bool {
	if !c.leaving && !c.eof && !c.l.draining || c.outstanding > 0 || len(c.out) > c.sent || c.held != nil {
		return false
	}
	return c.leaving || !c.queued && !c.stalled && !c.paused && !c.busy && c.wait == nil && (c.eof || c.tx == nil)
}

// drain closes a client when the service ends: now, or when what is under way has ended.
func (c *client) drain() {
	if c.wait != nil || c.subs != nil || c.outstanding == 0 {
		c.leaving = true
	}
	if c.wait != nil || c.blocking > 0 {
		c.close()
		return
	}
	c.touch()
}

// halfEnded notes that the client sends no more. What it sent before may not be read yet: reading tells where it ends.
func (c *client) halfEnded() {
	c.ending = true
	if c.vain() {
		c.close()
		return
	}
	c.linger()
	c.watchSocket()
}

// ended notes that the client sends no more. It still gets the replies that are due, but nothing it must wait for.
func (c *client) ended() {
	c.eof = true
	if c.vain() || c.through() {
		c.close()
		return
	}
	c.linger()
	c.watchSocket()
}

// watchSocket sets what the loop waits for.
func (c *client) watchSocket() {
	var interest uint32
	if !c.eof {
		if !c.ending {
			interest = eventHalfEnd
		}
		if c.runnable() || len(c.in)-c.inAt < readAhead && !c.leaving && !c.paused {
			interest |= eventRead
		}
	}
	if c.sent < len(c.out) {
		interest |= eventWrite
	}
	if interest != c.interest {
		c.interest = interest
		if err := c.l.poll.change(c.fd, interest); err != nil {
			c.close()
		}
	}
}

// close ends the connection at once. Replies that come for it are dropped.
func (c *client) close() {
	if c.closed {
		return
	}
	c.closed = true
	l := c.l
	l.release(c.fd)
	delete(l.clients, c.id)
	l.p.clients.Add(-1)
	l.timers.stop(c.login)
	l.timers.stop(c.idle)
	l.timers.stop(c.lingers)
	c.dropInput()
	if c.out != nil {
		l.buffers.put(c.out)
		c.out = nil
	}
	c.parser, c.tx, c.held = nil, nil, nil
	delete(l.heldWriters, c)
	if c.wait != nil {
		c.wait.cancel()
	}
	if c.b != nil && c.b.owner == c {
		c.b.discard()
	}
}
