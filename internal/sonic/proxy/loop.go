package proxy

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

const (
	clientReadSize  = 64 << 10
	backendReadSize = 256 << 10
)

// loop serves the clients, in one goroutine. A round reads all readable sockets, and
// then writes to each socket once: the commands of many clients go to Redis in one write. Only this
// goroutine may use the loop. Other goroutines may call only post.
type loop struct {
	proxy *Proxy
	cfg   *Config
	log   *zap.Logger
	poll  *eventloop.Poller
	// ctx ends with the loop, which cancels connects in flight.
	ctx    context.Context
	cancel context.CancelFunc

	now     time.Time // start of this round
	buffers eventloop.Buffers
	parser  *resp.Parser // for clients without a partly read request
	read    []byte       // buffer for reading clients' sockets
	replies []byte       // buffer for reading connections to Redis

	sockets []socketOwner // by file descriptor
	clients map[uint64]*client
	shared  map[sharedKey]*backend
	slots   *cluster.Map // nil for a single Redis
	slotsAt uint64       // increases with each change of slots

	unusedReplies *ordered // to be used again, linked by next
	// firstSlots are the first slots of the primaries, in the order of slots.Primaries; noSlot for a
	// single Redis.
	firstSlots []int
	dedicated  map[*backend]struct{}
	watchers   map[sharedKey]*keyWatcher // for keys that blocked clients wait for

	dirtyClients  []*client
	dirtyBackends []*backend
	ready         []*client // their remaining input can be run
	fdsToClose    []int     // descriptors to close at the end of the round: until then no new socket may get their number
	timers        eventloop.Timers
	unpublished   []*client // clients whose replies wait until their effects are published
	// Clients and blocking commands whose writes wait for WritesOpen.
	waitingWriters map[*client]struct{}
	waitingBlocked map[*blockedCommand]struct{}

	published    streamID  // the broker has all effects up to this id
	blocked      int64     // number of clients in a blocking command
	keyless      string    // the address of the primary for commands without keys; empty: not chosen yet
	httpWarnedAt time.Time // time of the last warning about a client that sends HTTP
	draining     bool
	stopped      bool

	mu    sync.Mutex
	inbox []func()
	awake atomic.Bool
	// done is closed when run has returned.
	done chan struct{}
}

// sharedKey identifies a connection that clients share.
type sharedKey struct {
	db      int
	proto   int
	primary string // as in backend
}

// socketOwner is a client or a connection to Redis.
type socketOwner interface {
	handleEvents(events uint32)
}

func newLoop(p *Proxy) (*loop, error) {
	poll, err := eventloop.NewPoller()
	if err != nil {
		return nil, err
	}
	l := &loop{
		proxy: p, cfg: &p.cfg, log: p.log, poll: poll,
		now:     time.Now(),
		parser:  new(resp.Parser),
		read:    make([]byte, clientReadSize),
		replies: make([]byte, backendReadSize),
		clients: make(map[uint64]*client), shared: make(map[sharedKey]*backend), dedicated: make(map[*backend]struct{}),
		watchers: make(map[sharedKey]*keyWatcher), waitingWriters: make(map[*client]struct{}), waitingBlocked: make(map[*blockedCommand]struct{}),
		firstSlots: []int{noSlot}, done: make(chan struct{}),
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l, nil
}

// post makes the loop run f, before it handles what a client sends from now on. It is safe for
// concurrent use. After the end of the loop, post returns false and f does not run.
func (l *loop) post(f func()) bool {
	l.mu.Lock()
	if l.stopped {
		l.mu.Unlock()
		return false
	}
	l.inbox = append(l.inbox, f)
	l.mu.Unlock()
	if !l.awake.Swap(true) {
		l.poll.Wake()
	}
	return true
}

// run serves clients until drain was posted and the last client is closed.
func (l *loop) run() {
	defer close(l.done)
	defer l.end()
	for !l.finished() {
		n, err := l.poll.Wait(l.timers.Wait())
		if err != nil {
			l.log.Error("the event loop cannot wait for sockets", zap.Error(err))
			return
		}
		l.now = time.Now()
		if l.awake.Load() {
			l.runInbox() // before the commands that arrived after it was posted
		}
		for i := range n {
			fd, events := l.poll.Event(i)
			if fd == l.poll.Wakeup {
				l.runInbox()
				continue
			}
			if fd < len(l.sockets) && l.sockets[fd] != nil {
				l.sockets[fd].handleEvents(events)
			}
		}
		l.timers.Fire(l.now)
		l.finishRound()
	}
}

// finishRound writes the output of the round, and runs input that had to wait.
func (l *loop) finishRound() {
	for len(l.ready)+len(l.dirtyBackends)+len(l.dirtyClients) > 0 {
		for i := 0; i < len(l.ready); i++ { // the list may grow during the loop
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
	l.poll.ClearWakeup()
	l.awake.Store(false)
	l.mu.Lock()
	work := l.inbox
	l.inbox = nil
	l.mu.Unlock()
	for _, f := range work {
		f()
	}
}

// register makes the loop pass events of fd to owner.
func (l *loop) register(fd int, owner socketOwner, interest uint32) error {
	if err := l.poll.Add(fd, interest); err != nil {
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
	l.poll.Remove(fd)
	l.proxy.relays.Released(fd)
	l.sockets[fd] = nil
	l.fdsToClose = append(l.fdsToClose, fd)
}

// addClient adds a new client with its socket.
func (l *loop) addClient(fd int, conn net.Addr, local net.Addr, id uint64) {
	c := newClient(l, fd, id, conn, local)
	if err := l.register(fd, c, c.interest); err != nil {
		l.log.Warn("cannot add a client to the event loop", zap.Error(err))
		eventloop.CloseSocket(fd)
		l.proxy.clients.Add(-1)
		return
	}
	l.clients[id] = c
	if l.draining {
		c.close()
		return
	}
	c.begin()
}

// drain closes each client as soon as it has no command in flight.
func (l *loop) drain() {
	l.draining = true
	for _, c := range l.clients {
		c.drain()
	}
}

// finished reports whether the loop is draining and has no clients left.
func (l *loop) finished() bool { return l.draining && len(l.clients) == 0 }

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
	for b := range l.dedicated {
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
	for _, f := range work { // a function may bring a new socket, which must be closed
		f()
	}
	for _, b := range l.shared {
		b.discard()
	}
	l.closeReleased()
	l.poll.Close()
}

// closeReleased closes each descriptor exactly once: another connection of the process may get its
// number immediately.
func (l *loop) closeReleased() {
	for _, fd := range l.fdsToClose {
		eventloop.CloseSocket(fd)
	}
	l.fdsToClose = l.fdsToClose[:0]
}

// connection returns the connection that clients of that db and protocol share.
func (l *loop) connection(db, proto int) *backend { return l.connectionTo("", db, proto) }

// connectionTo is like connection, for one primary of a Redis Cluster.
func (l *loop) connectionTo(primary string, db, proto int) *backend {
	key := sharedKey{db, proto, primary}
	b := l.shared[key]
	if b == nil {
		b = newBackend(l, db, proto)
		b.primary = primary
		l.shared[key] = b
		b.connect()
	}
	return b
}

func (l *loop) backends() map[*backend]struct{} {
	all := make(map[*backend]struct{}, len(l.shared)+len(l.dedicated)+len(l.watchers))
	for _, b := range l.shared {
		all[b] = struct{}{}
	}
	for b := range l.dedicated {
		all[b] = struct{}{}
	}
	for _, w := range l.watchers {
		all[w.b] = struct{}{}
	}
	return all
}

func (l *loop) connected() bool {
	for _, b := range l.shared {
		if b.state == up {
			return true
		}
	}
	return false
}
