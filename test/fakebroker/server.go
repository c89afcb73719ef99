package fakebroker

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// stopTimeout bounds how long a test waits for the server's goroutines.
const stopTimeout = 10 * time.Second

// Option changes a Server before it starts.
type Option func(*Server)

// WithDeduplication drops entries whose sequence id is not above the last one of the same producer
// name, as a namespace with deduplication enabled does: the receipt of a dropped entry carries the
// message id -1:-1.
func WithDeduplication() Option { return func(s *Server) { s.dedup = true } }

// WithAutoCreate sets whether topics that clients name are created, and with how many partitions.
// The default is to create them without partitions; otherwise clients get TopicNotFound.
func WithAutoCreate(create bool, partitions int) Option {
	return func(s *Server) { s.autoCreate, s.autoPartitions = create, partitions }
}

// WithMaxMessageSize sets the limit announced to clients. The default is 5 MiB, the broker's.
func WithMaxMessageSize(n int) Option { return func(s *Server) { s.maxMessageSize = n } }

// WithDispatchLog notes every dispatch of an entry, see Dispatches.
func WithDispatchLog() Option { return func(s *Server) { s.journaling = true } }

// Server is one broker.
type Server struct {
	listener net.Listener
	// running counts the server's goroutines and timers.
	running sync.WaitGroup

	dedup          bool
	autoCreate     bool
	autoPartitions int
	maxMessageSize int

	mu       sync.Mutex
	closed   bool
	refuse   bool
	stalled  chan struct{} // not nil: connections read nothing until it is closed
	changed  chan struct{} // not nil: somebody waits for a change, see Until
	conns    map[*conn]struct{}
	accepted int
	topics   map[string]*topic
	ledgers  uint64
	names    int
	rules    []*Fault
	received map[Command]int
	problems []string
	// isolated holds the identities of clients that may not connect.
	isolated map[string]struct{}

	journaling bool
	journal    []Dispatch
}

// Start starts a server for the duration of a test. At the end it fails the test if a goroutine of
// the server is left, or if a client sent something that the server does not understand.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	s, err := Listen(opts...)
	if err != nil {
		t.Fatalf("start fake broker: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close fake broker: %v", err)
		}
		for _, p := range s.Problems() {
			t.Errorf("fake broker: %s", p)
		}
	})
	return s
}

// Listen starts a server on a free port of the loopback interface, for uses outside of a test.
func Listen(opts ...Option) (*Server, error) {
	s := &Server{
		autoCreate:     true,
		maxMessageSize: 5 << 20,
		conns:          map[*conn]struct{}{},
		topics:         map[string]*topic{},
		received:       map[Command]int{},
		isolated:       map[string]struct{}{},
	}
	for _, opt := range opts {
		opt(s)
	}
	var err error
	if s.listener, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	s.running.Add(1)
	go s.accept()
	return s, nil
}

// URL is the service URL for clients.
func (s *Server) URL() string { return "pulsar://" + s.listener.Addr().String() }

// Close stops the server. When it returns nil, no goroutine of the server is left. It may be called
// more than once.
func (s *Server) Close() error {
	s.mu.Lock()
	s.closed = true
	for c := range s.conns {
		c.close()
	}
	s.resume()
	s.stopTimers()
	s.notify()
	s.mu.Unlock()

	err := s.listener.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	done := make(chan struct{})
	go func() {
		s.running.Wait()
		close(done)
	}()
	select {
	case <-done:
		return err
	case <-time.After(stopTimeout):
		return errors.Join(err, errors.New("goroutines of the server are still running"))
	}
}

// Problems lists what clients sent and the server did not understand.
func (s *Server) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.problems...)
}

// Until waits until cond is true. It evaluates cond at once and after every change of the server's
// state; cond may call any method of the server.
func (s *Server) Until(ctx context.Context, cond func() bool) error {
	for {
		// The channel is taken before cond looks: a change in between closes it, so none is missed.
		s.mu.Lock()
		if s.changed == nil {
			s.changed = make(chan struct{})
		}
		changed := s.changed
		s.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// WaitEntries waits until the topic holds at least n messages.
func (s *Server) WaitEntries(ctx context.Context, topic string, n int) error {
	return s.waitCount(ctx, "messages on "+topic, n, func() int { return s.Count(topic) })
}

// Received returns how many commands of a type clients have sent.
func (s *Server) Received(c Command) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.received[c]
}

// WaitReceived waits until clients have sent at least n commands of a type.
func (s *Server) WaitReceived(ctx context.Context, c Command, n int) error {
	return s.waitCount(ctx, fmt.Sprintf("commands of type %d", c), n, func() int { return s.Received(c) })
}

// Connections returns how many clients are connected now.
func (s *Server) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Accepted returns how many connections there have been, refused ones included.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

func (s *Server) waitCount(ctx context.Context, what string, n int, count func() int) error {
	var have int
	err := s.Until(ctx, func() bool {
		have = count()
		return have >= n
	})
	if err != nil {
		return fmt.Errorf("%d of %d %s: %w", have, n, what, err)
	}
	return nil
}

// notify wakes those who wait for a change. The caller holds the lock.
func (s *Server) notify() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

func (s *Server) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

func (s *Server) accept() {
	defer s.running.Done()
	for {
		nc, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.mu.Lock()
		s.accepted++
		if s.closed || s.refuse {
			_ = nc.Close()
		} else {
			c := &conn{
				s: s, nc: nc, wake: make(chan struct{}, 1), done: make(chan struct{}),
				producers: map[uint64]*producer{}, consumers: map[uint64]*consumer{},
			}
			s.conns[c] = struct{}{}
			s.running.Add(2)
			go c.read()
			go c.write()
		}
		s.notify()
		s.mu.Unlock()
	}
}

// conn is one client connection. Everything but the out queue is guarded by the server's lock.
type conn struct {
	s         *Server
	nc        net.Conn
	closed    bool
	done      chan struct{}
	identity  string
	producers map[uint64]*producer
	consumers map[uint64]*consumer

	outMu sync.Mutex
	out   [][]byte
	wake  chan struct{}
}

// read handles the connection's commands until it ends.
func (c *conn) read() {
	defer c.s.running.Done()
	r := bufio.NewReaderSize(c.nc, 64<<10)
	for {
		if !c.waitStall() {
			return
		}
		f, err := readFrame(r, c.s.maxMessageSize+framePadding)
		c.s.mu.Lock()
		if c.closed {
			c.s.mu.Unlock()
			return
		}
		if err == nil {
			err = c.handle(f)
		} else if errors.Is(err, io.EOF) || isNetError(err) {
			err = io.EOF
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				c.s.problem("connection closed: %v", err)
			}
			c.close()
		}
		c.s.notify()
		c.s.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// isNetError tells a connection that broke from a client that sent nonsense.
func isNetError(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

// waitStall waits while the server is stalled; false means the connection is closed.
func (c *conn) waitStall() bool {
	c.s.mu.Lock()
	stalled := c.s.stalled
	c.s.mu.Unlock()
	if stalled == nil {
		return true
	}
	select {
	case <-stalled:
		return true
	case <-c.done:
		return false
	}
}

// write sends what is queued. A client that does not read blocks only this goroutine.
func (c *conn) write() {
	defer c.s.running.Done()
	for {
		select {
		case <-c.wake:
		case <-c.done:
			return
		}
		c.outMu.Lock()
		out := net.Buffers(c.out)
		c.out = nil
		c.outMu.Unlock()
		if _, err := out.WriteTo(c.nc); err != nil {
			c.s.mu.Lock()
			c.close()
			c.s.notify()
			c.s.mu.Unlock()
			return
		}
	}
}

// send queues a command. On a closed connection it does nothing.
func (c *conn) send(cmd Command, body message) { c.sendEntry(cmd, body, nil) }

func (c *conn) sendEntry(cmd Command, body message, entry []byte) {
	c.outMu.Lock()
	c.out = append(c.out, encodeFrame(encodeCommand(cmd, body), entry))
	c.outMu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// close drops the connection with its producers and consumers; what the consumers had not
// acknowledged goes to others.
func (c *conn) close() {
	if c.closed {
		return
	}
	c.closed = true
	close(c.done)
	_ = c.nc.Close()
	delete(c.s.conns, c)
	for _, p := range c.producers {
		p.remove()
	}
	// Without permits none of them is sent what the ones removed before it leave behind.
	for _, co := range c.consumers {
		co.permits = 0
	}
	for _, co := range c.consumers {
		co.remove()
	}
}

// sendError is CommandError: request_id = 1, error = 2, message = 3.
func (c *conn) sendError(requestID uint64, code ServerError, text string) {
	c.send(CommandError, message(nil).num(1, requestID).num(2, uint64(code)).str(3, text))
}

// sendSuccess is CommandSuccess: request_id = 1.
func (c *conn) sendSuccess(requestID uint64) {
	c.send(CommandSuccess, message(nil).num(1, requestID))
}

// handle carries out one command under the server's lock. An error closes the connection.
func (c *conn) handle(f frame) error {
	cmd, body, err := decodeCommand(f.command)
	if err != nil {
		return err
	}
	c.s.received[cmd]++
	switch cmd {
	case CommandConnect:
		if c.identity, err = decodeIdentity(body); err != nil {
			return err
		}
		if _, isolated := c.s.isolated[c.identity]; isolated {
			return io.EOF
		}
		// CommandConnected: server_version = 1, protocol_version = 2, max_message_size = 3,
		// feature_flags = 4 (FeatureFlags: supports_partial_producer = 3).
		c.send(CommandConnected, message(nil).str(1, "aviary-wire").num(2, protocolVersion).
			num(3, uint64(c.s.maxMessageSize)).bytes(4, message(nil).flag(3, true)))
		return nil
	case CommandPing:
		c.send(CommandPong, nil)
		return nil
	case CommandPong:
		return nil
	case CommandPartitionedMetadata:
		return c.partitionedMetadata(body)
	case CommandLookup:
		return c.lookup(body)
	case CommandGetTopicsOfNamespace:
		return c.topicsOfNamespace(body)
	case CommandGetSchema:
		return c.getSchema(body)
	case CommandGetOrCreateSchema:
		return c.getOrCreateSchema(body)
	case CommandProducer:
		return c.createProducer(body)
	case CommandSend:
		return c.receive(body, f.entry)
	case CommandCloseProducer:
		return c.closeProducer(body)
	case CommandSubscribe:
		return c.subscribe(body)
	case CommandFlow:
		return c.flow(body)
	case CommandAck:
		return c.ack(body)
	case CommandRedeliverUnacknowledged:
		return c.redeliver(body)
	case CommandUnsubscribe:
		return c.unsubscribe(body)
	case CommandCloseConsumer:
		return c.closeConsumer(body)
	case CommandSeek:
		return c.seek(body)
	case CommandGetLastMessageID:
		return c.lastMessageID(body)
	}
	return fmt.Errorf("command of type %d is not supported", cmd)
}
