// Package proxy is a proxy that behaves like Redis toward clients. It sends reads to this zone's
// Redis unchanged. It sends writes there as calls of the library's functions, which record the
// effects for the other zones. It converts the replies of functions to those of the commands. The
// package may import the packages below it and cluster, command, resp and script, and none that use
// Pulsar.
package proxy

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/publishing"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/tlsrelay"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Proxy is the proxy of one zone.
type Proxy struct {
	cfg     Config
	log     *zap.Logger
	metrics *metrics
	table   *command.Table

	handlers                    []handler  // by Command.Index
	options                     []int      // by Command.Index: request.OptionsStart
	functions                   [][]byte   // by Command.Index: FCALL, the function and its key, as bulk strings; see Proxy.outbox
	batchHeads                  [][][]byte // by Command.Index and number of arguments: see batchHeads
	closeTx, markKeys, shipKeys []byte     // calls of other functions, in the same form
	callBatch                   []byte
	dbSize, randomKey           []byte   // the commands for DBSIZE and RANDOMKEY in the database of the state keys
	outboxes                    [][]byte // by slot of a Redis Cluster, with Config.SlotOutboxes: the name, as a bulk string

	runID  string // prefix of the ids of transactions
	lastTx uint64 // only the loop uses it

	scripts publishing.Scripts // of clients, if Config.Publish

	users       atomic.Pointer[access.Users]
	limits      resp.Limits
	loginLimits resp.Limits

	loop       atomic.Pointer[loop] // nil before Serve
	clients    atomic.Int64
	lastID     uint64       // only accept uses it
	writes     atomic.Int32 // a WriteMode
	refusal    atomic.Pointer[string]
	background sync.WaitGroup
	relays     *tlsrelay.Relays
	dialer     *upstream.Dialer

	mu sync.Mutex
	// primaries says by address why a primary of a Redis Cluster cannot be reached; nil if it can. A
	// single Redis has the address "".
	primaries map[string]error
}

// mostAuthArguments is how many arguments a command may have before its client has logged in, as in
// Redis.
const mostAuthArguments = 10

// flushes returns the commands that [Config.Flush] is about.
func flushes() []string { return []string{"flushall", "flushdb"} }

// New returns a proxy. It starts nothing.
func New(cfg Config, log *zap.Logger, reg prometheus.Registerer) (*Proxy, error) {
	cfg = cfg.withDefaults()
	table, err := command.NewTable()
	if err != nil {
		return nil, err
	}
	for _, name := range flushes() {
		switch {
		case cfg.SlotOutboxes:
			table.Refuse(name, "flush is not supported in front of a Redis Cluster with other zones yet")
		case cfg.Flush == FlushRefused:
			table.Refuse(name, "it would delete the keys of every zone, see flush in the configuration")
		}
	}
	p := &Proxy{
		cfg: cfg, log: log.Named("proxy"), metrics: newMetrics(reg), table: table,
		limits:      resp.Limits{Bulk: cfg.Limits.BulkBytes, Arguments: cfg.Limits.Arguments, Request: cfg.Limits.QueryBytes},
		loginLimits: resp.Limits{Bulk: cfg.Limits.AuthBulkBytes, Arguments: mostAuthArguments, Request: cfg.Limits.QueryBytes, Unauthenticated: true},
		primaries:   make(map[string]error),
	}
	p.relays = tlsrelay.New(cfg.DrainTimeout)
	p.dialer = upstream.New(&p.cfg.Backend, p.relays, cfg.Cluster != nil)
	p.users.Store(access.NewUsers(cfg.Users))
	p.handlers = p.handlersOf()
	if cfg.SlotOutboxes {
		p.outboxes = slotOutboxes()
	}
	for _, cmd := range table.All() {
		name := "sonic_" + cmd.Name
		if cfg.Flush == FlushZone && slices.Contains(flushes(), cmd.Name) {
			name += "_zone"
		}
		p.functions = append(p.functions, p.functionPrefix(name))
		p.options = append(p.options, request.OptionsStart(cmd))
		p.batchHeads = append(p.batchHeads, batchHeads(cmd))
	}
	p.closeTx, p.markKeys, p.shipKeys = p.functionPrefix("sonic_tx"), p.functionPrefix("sonic_mark"), p.functionPrefix("sonic_ship")
	p.callBatch = p.functionPrefix("sonic_many")
	if cfg.SlotOutboxes {
		// With a key Redis would refuse all writes if the slot of the first has moved. Then the others,
		// which are sent again, would run behind later commands of their clients.
		p.callBatch = resp.AppendBulk(resp.AppendBulk(resp.AppendBulk(nil, "FCALL"), "sonic_many"), "0")
	}
	p.dbSize = state.SizeCommand(cfg.Zones)
	p.randomKey = resp.AppendCommand(nil, "EVAL_RO", randomKeyScript, "0")
	var random [6]byte
	if _, err := rand.Read(random[:]); err != nil {
		return nil, err
	}
	p.runID = hex.EncodeToString(random[:])
	return p, nil
}

// functionPrefix returns the begin of a call of a function, which ends with its key. With
// Config.SlotOutboxes the key depends on the slot and is not part of it: see Proxy.outbox.
func (p *Proxy) functionPrefix(name string) []byte {
	b := resp.AppendBulk(nil, "FCALL")
	b = resp.AppendBulk(b, name)
	b = resp.AppendBulk(b, "1")
	if p.cfg.SlotOutboxes {
		return b
	}
	return resp.AppendBulk(b, state.Outbox)
}

// Serve accepts clients from ln until ctx ends. Then it answers commands in flight, at most for
// Config.DrainTimeout, closes all connections and ln, and returns nil. When it returns, all of its
// goroutines have ended. Call it once.
func (p *Proxy) Serve(ctx context.Context, ln net.Listener) error {
	defer func() { _ = ln.Close() }()
	l, err := newLoop(p)
	if err != nil {
		return err
	}
	p.loop.Store(l)
	p.background.Go(l.run)
	l.post(func() { // Ready reports the state of these connections
		if p.cfg.Cluster != nil {
			l.clusterChanged()
		} else {
			l.connection(p.cfg.Backend.DB, 2)
		}
	})
	stop := context.AfterFunc(ctx, func() { _ = ln.Close() })
	err = p.accept(ctx, ln, l)
	stop()
	p.shutDown(l)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// minAcceptPause and maxAcceptPause bound the pauses while clients cannot be accepted.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

func (p *Proxy) accept(ctx context.Context, ln net.Listener, l *loop) error {
	wait := backoff.Backoff{Min: minAcceptPause, Max: maxAcceptPause}
	for {
		conn, err := ln.Accept()
		if err == nil {
			wait.Reset()
			p.add(ctx, conn, l)
			continue
		}
		if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("cannot accept clients: %w", err)
		}
		// For instance too many open files: the error ends when clients disconnect.
		p.log.Warn("cannot accept a client", zap.Error(err))
		wait.Wait(ctx)
	}
}

// add gives a new client to the loop.
func (p *Proxy) add(ctx context.Context, conn net.Conn, l *loop) {
	if p.clients.Add(1) > int64(p.cfg.Limits.Clients) {
		p.clients.Add(-1)
		p.metrics.rejected.Inc()
		_, _ = conn.Write([]byte("-ERR max number of clients reached\r\n"))
		_ = conn.Close()
		return
	}
	remote, local := conn.RemoteAddr(), conn.LocalAddr()
	p.lastID++
	id := p.lastID
	var fd int
	var err error
	if p.cfg.TLS != nil {
		fd, err = p.relays.Server(ctx, conn, p.cfg.TLS, p.cfg.Limits.AuthTimeout, p.metrics.rejected.Inc)
	} else {
		fd, err = eventloop.TakeSocket(conn)
	}
	if err != nil {
		p.clients.Add(-1)
		p.log.Warn("cannot serve a client", zap.Error(err))
		return
	}
	if !l.post(func() { l.addClient(fd, remote, local, id) }) {
		p.clients.Add(-1)
		eventloop.CloseSocket(fd)
	}
}

func (p *Proxy) shutDown(l *loop) {
	l.post(l.drain)
	late := time.AfterFunc(p.cfg.DrainTimeout, func() { l.post(l.abort) })
	<-l.done
	late.Stop()
	p.background.Wait()
	p.relays.Wait() // after the background connects, which may add relays
}

// Ready returns nil if there is a connection to Redis, in front of a Redis Cluster to one of its
// primaries, and otherwise why there is none. It is safe for concurrent use.
func (p *Proxy) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.primaries) == 0 {
		return errors.New("no connection to Redis yet")
	}
	var errs []error
	for _, err := range p.primaries {
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return fmt.Errorf("no connection to Redis: %w", errors.Join(errs...))
}

func (p *Proxy) connectionUp(primary string) {
	p.mu.Lock()
	before, known := p.primaries[primary]
	p.primaries[primary] = nil
	p.mu.Unlock()
	switch {
	case known && before == nil:
	case primary != "":
		p.log.Info("connected to a primary of the cluster", zap.String("address", primary))
	default:
		p.log.Info("connected to Redis")
		p.metrics.connected.Set(1)
	}
}

func (p *Proxy) connectionDown(primary string, err error) {
	p.mu.Lock()
	before, known := p.primaries[primary]
	p.primaries[primary] = err
	p.mu.Unlock()
	lost := known && before == nil
	if primary == "" {
		if lost {
			p.log.Warn("lost the connection to Redis, connecting again", zap.Error(err))
			p.metrics.connected.Set(0)
		}
		return
	}
	p.cfg.Cluster.Refresh()
	if lost || !known {
		p.log.Warn("cannot reach a primary of the cluster, connecting again", zap.String("address", primary), zap.Error(err))
	}
}

// Published says that the broker has all effects up to the stream id "ms-seq". The proxy then sends
// the replies that wait for them. It is safe for concurrent use.
func (p *Proxy) Published(id string) {
	upTo, ok := parseStreamID([]byte(id))
	if !ok || !p.cfg.AckPublished {
		return
	}
	p.post(func(l *loop) { l.publishedUpTo(upTo) })
}

// SetWriteMode changes how the proxy treats writes from now on. Clients get reason in the error if
// writes are refused. It is safe for concurrent use.
func (p *Proxy) SetWriteMode(w WriteMode, reason string) {
	p.refusal.Store(&reason)
	p.writes.Store(int32(w))
	p.post((*loop).writesChanged)
}

// post makes the loop run f. It does nothing before Serve. It is safe for concurrent use.
func (p *Proxy) post(f func(*loop)) {
	if l := p.loop.Load(); l != nil {
		l.post(func() { f(l) })
	}
}

func (p *Proxy) limitsOf(c *client) *resp.Limits {
	if c.user == nil {
		return &p.loginLimits
	}
	return &p.limits
}

// setMode sets the client's mode from its db and protocol.
func (c *client) setMode() { c.mode = c.modeIn(c.db, "") }

// errNewPrimary is why the proxy closes a connection to a Redis that is not the primary any more.
var errNewPrimary = errors.New("another Redis is the primary now")

// SetPrimary sets which Redis is the primary now: its address, its run_id, or both. An empty
// address keeps the previous one; an empty run_id means that it is unknown. Connections to another
// Redis end as if they were lost. It is safe for concurrent use.
func (p *Proxy) SetPrimary(address, server string) {
	p.disconnect(errNewPrimary, p.dialer.SetPrimary(address, server).Other)
}

// Demoted says that the Redis with that run_id has become a replica. Connections to it end as if
// they were lost. A write would get an error, but a client that only reads would go on reading data
// that may be old. It is safe for concurrent use.
func (p *Proxy) Demoted(server string) {
	p.disconnect(upstream.ErrReplica, func(to upstream.Server) bool { return to.RunID == server })
}

// disconnect ends the connections to servers for which from returns true.
func (p *Proxy) disconnect(why error, from func(upstream.Server) bool) {
	p.post(func(l *loop) {
		for b := range l.backends() {
			if b.state == up && from(b.server) {
				b.lost(why)
			}
		}
	})
}

// SetUsers replaces the users that may log in. As in Redis, it disconnects clients of removed
// users. Other clients stay logged in, even if their user's password has changed, and get their
// user's new permissions at once. It is safe for concurrent use.
func (p *Proxy) SetUsers(list []access.User) {
	now := access.NewUsers(list)
	p.users.Store(now)
	p.post(func(l *loop) {
		for _, c := range l.clients {
			c.changeUser(now)
		}
	})
}
