// Package proxy is the Redis endpoint: to clients it is Redis. Reads go to this zone's Redis as they came; writes go
// there as calls of the library of functions, which notes what they did for the other zones. Replies come back as Redis
// gave them.
package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// Proxy is the endpoint of one zone.
type Proxy struct {
	cfg     Config
	log     *zap.Logger
	metrics *metrics
	table   *command.Table

	handlers                    []handler  // by Command.Index
	options                     []int      // by Command.Index: optionsFrom
	functions                   [][]byte   // by Command.Index: FCALL, the function, its key, as bulk strings
	heads                       [][][]byte // by Command.Index: what precedes the arguments in a call of several writes, by their number
	closeTx, markKeys, shipKeys []byte     // calls of other functions, likewise
	callMany                    []byte
	countState                  []byte // the command that counts state keys

	runID  string // begins the names of transactions
	lastTx atomic.Uint64

	users       atomic.Pointer[users]
	limits      resp.Limits
	loginLimits resp.Limits

	loops      []*loop
	clients    atomic.Int64
	lastID     atomic.Uint64
	databases  atomic.Int64
	longest    atomic.Int64 // argument that Redis takes, bytes
	query      atomic.Int64 // bytes of a transaction that Redis takes
	version    atomic.Pointer[string]
	writes     atomic.Int32 // Writes
	refusal    atomic.Pointer[string]
	primary    atomic.Pointer[primary] // nil: not known
	background sync.WaitGroup
	relays     sync.Map // of TLS connections (*tls.Conn) by the descriptor of the event loop

	mu   sync.Mutex
	down error // why the shared connection is missing; nil when it is there
}

// New checks cfg and prepares an endpoint. It starts nothing.
func New(cfg Config, log *zap.Logger, reg prometheus.Registerer) (*Proxy, error) {
	cfg = cfg.withDefaults()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	table, err := command.NewTable()
	if err != nil {
		return nil, err
	}
	p := &Proxy{
		cfg: cfg, log: log.Named("proxy"), metrics: newMetrics(reg), table: table,
		limits:      resp.Limits{Bulk: cfg.Limits.BulkBytes, Arguments: cfg.Limits.Arguments, Request: cfg.Limits.QueryBytes},
		loginLimits: resp.Limits{Bulk: cfg.Limits.AuthBulkBytes, Arguments: cfg.Limits.AuthArguments, Request: cfg.Limits.QueryBytes, Unauthenticated: true},
		down:        errors.New("no connection to Redis yet"),
	}
	p.databases.Store(16)
	p.longest.Store(512 << 20)
	p.query.Store(1 << 30)
	p.users.Store(usersOf(cfg.Users))
	p.handlers = p.handlersOf()
	for _, cmd := range table.All() {
		p.functions = append(p.functions, functionPrefix("sonic_"+cmd.Name))
		p.options = append(p.options, optionsFrom(cmd))
		p.heads = append(p.heads, headsOf(cmd))
	}
	p.closeTx, p.markKeys, p.shipKeys = functionPrefix("sonic_tx"), functionPrefix("sonic_mark"), functionPrefix("sonic_ship")
	p.callMany = functionPrefix("sonic_many")
	p.countState = p.stateCount()
	var random [6]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	p.runID = hex.EncodeToString(random[:])
	return p, nil
}

// outKey names the stream of effects of the only lane.
const outKey = "{sonic:0}out"

func functionPrefix(name string) []byte {
	b := resp.AppendBulk(nil, "FCALL")
	b = resp.AppendBulk(b, name)
	b = resp.AppendBulk(b, "1")
	return resp.AppendBulk(b, outKey)
}

// Serve takes clients from ln until ctx ends. Then it answers what is under way, at most for Config.DrainTimeout, closes
// all connections and ln, and returns nil. When it returns, nothing of it is left. Call it once.
func (p *Proxy) Serve(ctx context.Context, ln net.Listener) error {
	defer func() { _ = ln.Close() }()
	var loops []*loop
	for range p.cfg.Loops {
		l, err := newLoop(p)
		if err != nil {
			for _, l := range loops {
				l.end()
			}
			return err
		}
		loops = append(loops, l)
	}
	p.mu.Lock()
	p.loops = loops
	p.mu.Unlock()
	for _, l := range loops {
		p.background.Go(l.run)
		l.post(func() { l.connection(p.cfg.Backend.DB, 2) }) // Ready tells of it
	}
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	err := p.accept(ctx, ln)
	stop()
	p.shutDown()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (p *Proxy) accept(ctx context.Context, ln net.Listener) error {
	for wait := time.Duration(0); ; {
		conn, err := ln.Accept()
		if err == nil {
			wait = 0
			p.welcome(ctx, conn)
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("cannot accept clients: %w", err)
		}
		// Too many open files, for instance: clients that end make room.
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		p.log.Warn("cannot accept a client", zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(wait):
		}
	}
}

// welcome gives a new client to a loop.
func (p *Proxy) welcome(ctx context.Context, conn net.Conn) {
	if p.clients.Add(1) > int64(p.cfg.Limits.Clients) {
		p.clients.Add(-1)
		p.metrics.rejected.Inc()
		_, _ = conn.Write([]byte("-ERR max number of clients reached\r\n"))
		_ = conn.Close()
		return
	}
	remote, local := conn.RemoteAddr(), conn.LocalAddr()
	id := p.lastID.Add(1)
	l := p.loops[int(id)%len(p.loops)]
	var fd int
	var err error
	if p.cfg.TLS != nil {
		fd, err = p.serveTLS(ctx, conn)
	} else {
		fd, err = takeSocket(conn)
	}
	if err != nil {
		p.clients.Add(-1)
		p.log.Warn("cannot take a client", zap.Error(err))
		return
	}
	if !l.post(func() { l.adopt(fd, remote, local, id) }) {
		p.clients.Add(-1)
		closeSocket(fd)
	}
}

func (p *Proxy) shutDown() {
	for _, l := range p.loops {
		l.post(l.drain)
	}
	late := time.AfterFunc(p.cfg.DrainTimeout, func() {
		for _, l := range p.loops {
			l.post(l.abort)
		}
	})
	for _, l := range p.loops {
		<-l.done
	}
	late.Stop()
	p.background.Wait()
}

// Ready returns nil when there is a connection to Redis, and else why there is none. It is safe for concurrent use.
func (p *Proxy) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.down
}

func (p *Proxy) noteUp() {
	p.mu.Lock()
	was := p.down
	p.down = nil
	p.mu.Unlock()
	if was != nil {
		p.log.Info("connected to Redis")
		p.metrics.connected.Set(1)
	}
}

func (p *Proxy) noteDown(err error) {
	p.mu.Lock()
	was := p.down
	p.down = fmt.Errorf("no connection to Redis: %w", err)
	p.mu.Unlock()
	if was == nil {
		p.log.Warn("lost the connection to Redis, connecting again", zap.Error(err))
		p.metrics.connected.Set(0)
	}
}

// Shipped tells that the broker has everything of a lane up to the stream id "ms-seq". Replies that wait for it go out.
// It is safe for concurrent use.
func (p *Proxy) Shipped(_ int, id string) {
	upTo, ok := parseStreamID([]byte(id))
	if !ok || p.cfg.Ack != AckPublished {
		return
	}
	for _, l := range p.running() {
		l.post(func() { l.publishedUpTo(upTo) })
	}
}

// SetWrites changes what becomes of writes that come from now on; reason is told to clients when they are refused. It is
// safe for concurrent use.
func (p *Proxy) SetWrites(w Writes, reason string) {
	p.refusal.Store(&reason)
	p.writes.Store(int32(w))
	for _, l := range p.running() {
		l.post(l.writesChanged)
	}
}

// running returns the event loops: none before Serve. It is safe for concurrent use.
func (p *Proxy) running() []*loop {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.loops
}

func (p *Proxy) limitsOf(c *client) *resp.Limits {
	if c.user == nil {
		return &p.loginLimits
	}
	return &p.limits
}

// setMode keeps the first argument of functions up to date with the client's db and protocol.
func (c *client) setMode() {
	mode := strconv.Itoa(c.db)
	if c.proto == 3 {
		mode += "r"
	}
	c.mode = resp.AppendBulk(c.mode[:0], mode)
}
