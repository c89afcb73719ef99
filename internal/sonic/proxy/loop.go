package proxy

import (
	"context"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const (
	clientReadSize  = 64 << 10
	backendReadSize = 256 << 10
)

// A loop serves its share of the clients, in one goroutine. A round reads all sockets that can be read, and then writes
// each socket once: the commands of many clients go to Redis in one write. Everything below is the goroutine's own, but
// for post.
type loop struct {
	p    *Proxy
	cfg  *Config
	log  *zap.Logger
	poll *poller
	// ctx ends with the loop: connects under way are given up.
	ctx    context.Context
	cancel context.CancelFunc

	now     time.Time // of this round
	buffers buffers
	parser  *resp.Parser // reads requests of clients that have none half read
	read    []byte       // what clients' sockets are read into
	replies []byte       // what connections to Redis are read into

	sockets  []socketOwner // by descriptor
	clients  map[uint64]*client
	shared   map[sharedKey]*backend
	own      map[*backend]struct{}
	watchers map[int]*watcher // of keys that blocked clients wait for, by db

	dirtyClients  []*client
	dirtyBackends []*backend
	ready         []*client // their input can be read on
	closing       []int     // descriptors that are closed when the round is over: until then their numbers mean them
	timers        timers
	held          []*client // replies wait until they are published
	// Writes of these wait until they are allowed.
	heldWriters map[*client]struct{}
	heldTries   map[*waiting]struct{}

	published streamID  // the broker has all effects up to it
	stateKeys int64     // as they were counted last
	warned    time.Time // of a client that speaks HTTP, last
	draining  bool
	stopped   bool

	mu    sync.Mutex
	inbox []func()
	awake atomic.Bool
	// number of clients, for the limit over all loops
	done chan struct{}
}

// sharedKey names a connection that clients share.
type sharedKey struct {
	db    int
	proto int
}

// socketOwner is a client or a connection to Redis.
type socketOwner interface {
	happened(what uint32)
}

func newLoop(p *Proxy) (*loop, error) {
	poll, err := newPoller()
	if err != nil {
		return nil, err
	}
	l := &loop{
		p: p, cfg: &p.cfg, log: p.log, poll: poll,
		now:     time.Now(),
		parser:  new(resp.Parser),
		read:    make([]byte, clientReadSize),
		replies: make([]byte, backendReadSize),
		clients: make(map[uint64]*client), shared: make(map[sharedKey]*backend), own: make(map[*backend]struct{}),
		watchers: make(map[int]*watcher), heldWriters: make(map[*client]struct{}), heldTries: make(map[*waiting]struct{}),
		done: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// post lets the loop run f. It is safe for concurrent use. After the loop's end f does not run and post returns false.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return false
	}
	l.inbox = append(l.inbox, f)
	l.mu.Unlock()
	if !l.awake.Swap(true) {
		l.poll.wake()
	}
	return true
}

// run serves until stop was posted and everything under way is done.
func (l *loop) run() {
	defer close(l.done)
	defer l.end()
	for !l.finished() {
		n, err := l.poll.wait(l.timers.wait())
		if err != nil {
			l.log.Error("the event loop cannot wait for sockets", zap.Error(err))
			return
		}
		l.now = time.Now()
		for i := range n {
			fd, happened := l.poll.event(i)
			if fd == l.poll.wakeup {
				l.runInbox()
				continue
			}
			if fd < len(l.sockets) && l.sockets[fd] != nil {
				l.sockets[fd].happened(happened)
			}
		}
		l.timers.fire(l.now)
		l.settle()
	}
}

// settle writes what the round has made, and reads on what had to wait for it.
func (l *loop) settle() {
	for len(l.ready)+len(l.dirtyBackends)+len(l.dirtyClients) > 0 {
		for i := 0; i < len(l.ready); i++ { // it grows meanwhile
			c := l.ready[i]
			c.queued = false
			c.resume()
		}
		clear(l.ready)
		l.ready = l.ready[:0]
		for i := 0; i < len(l.dirtyBackends); i++ {
			b := l.dirtyBackends[i]
			b.dirty = false
			b.flush()
		}
		clear(l.dirtyBackends)
		l.dirtyBackends = l.dirtyBackends[:0]
		for i := 0; i < len(l.dirtyClients); i++ {
			c := l.dirtyClients[i]
			c.dirty = false
			c.flush()
		}
		clear(l.dirtyClients)
		l.dirtyClients = l.dirtyClients[:0]
	}
	l.closeReleased()
}

func (l *loop) runInbox() {
	l.poll.woken()
	l.awake.Store(false)
	l.mu.Lock()
	work := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range work {
		f()
	}
}

// register makes events of fd known to owner.
func (l *loop) register(fd int, owner socketOwner, interest uint32) error {
	if err := l.poll.add(fd, interest); err != nil {
		return err
	}
	for fd >= len(l.sockets) {
		l.sockets = append(l.sockets, nil)
	}
	l.sockets[fd] = owner
	return nil
}

// release closes fd at the end of the round.
func (l *loop) release(fd int) {
	l.poll.remove(fd)
	l.p.released(fd)
	l.sockets[fd] = nil
	l.closing = append(l.closing, fd)
}

// adopt takes a client's socket.
func (l *loop) adopt(fd int, conn net.Addr, local net.Addr, id uint64) {
	c := newClient(l, fd, id, conn, local)
	if err := l.register(fd, c, c.interest); err != nil {
		l.log.Warn("cannot wait for a client", zap.Error(err))
		closeSocket(fd)
		l.p.clients.Add(-1)
		return
	}
	l.clients[id] = c
	if l.draining {
		c.close()
		return
	}
	c.begin()
}

// drain closes clients as soon as nothing of theirs is under way.
func (l *loop) drain() {
	l.draining = true
	for _, c := range l.clients {
		c.drain()
	}
}

// finished reports whether a loop that drains has nothing left to do.
func (l *loop) finished() bool { return l.draining && len(l.clients) == 0 }

// abort closes all clients at once.
func (l *loop) abort() {
	for _, c := range l.clients {
		c.close()
	}
}

func (l *loop) end() {
	l.cancel()
	l.abort()
	for _, b := range l.shared {
		b.discard()
	}
	for b := range l.own {
		b.discard()
	}
	for _, w := range l.watchers {
		w.b.discard()
	}
	l.closeReleased()
	l.mu.Lock()
	l.stopped = true
	work := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range work { // sockets may be among them
		f()
	}
	for _, b := range l.shared {
		b.discard()
	}
	l.closeReleased()
	l.poll.close()
}

// closeReleased closes each descriptor once: another connection of the process may have its number at once.
func (l *loop) closeReleased() {
	for _, fd := range l.closing {
		closeSocket(fd)
	}
	l.closing = l.closing[:0]
}

// connection returns the connection that clients of that db and protocol share.
func (l *loop) connection(db, proto int) *backend {
	key := sharedKey{db, proto}
	b := l.shared[key]
	if b == nil {
		b = newBackend(l, db, proto)
		l.shared[key] = b
		b.connect()
	}
	return b
}

// connected reports whether there is a connection that clients share.
func (l *loop) connected() bool {
	for _, b := range l.shared {
		if b.state == up {
			return true
		}
	}
	return false
}

// clampMilliseconds rounds up: a timer must not fire early.
func clampMilliseconds(d time.Duration) int {
	if d <= 0 {
		return 0
	}
	return int(min((d+time.Millisecond-1)/time.Millisecond, math.MaxInt32))
}
