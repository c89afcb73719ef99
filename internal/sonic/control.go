package sonic

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
)

// control makes the connections for all that is not a client's command, and keeps them to one Redis: what is read of a primary must not be mixed
// with what its successor says. When another Redis is found where the one before was, all end. Who uses them sees that as a lost connection.
type control struct {
	backend
	timeout time.Duration
	found   func(server string) // told the run_id of another Redis than the one before
	demoted func(server string) // told the run_id of a Redis that is a replica

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	round  int    // one more each time all connections were ended
	server string // the run_id of the Redis
}

// Errors of a connection that leads to the wrong Redis.
var (
	errAnother = errors.New("another Redis answers than the one before")
	errReplica = errors.New("this Redis is a replica")
)

// replicaError is errReplica with what is known of the Redis. It wraps nothing: go-redis returns what is wrapped in an error of a new connection.
type replicaError struct{ role, host, port string }

func (e replicaError) Error() string {
	return fmt.Sprintf("its role is %s, of %s:%s: give the address of the master", e.role, e.host, e.port)
}

// Is implements the interface of [errors.Is].
func (e replicaError) Is(target error) bool { return target == errReplica }

// quiet has the client library write no log of its own: it would write to standard error for each attempt, past log.level and log.format. Who uses a client
// gets the errors, and says once what is the matter.
func quiet() { logging.Disable() }

// control is the client for all that is not a client's command. It never sends anything twice by itself. found is told the run_id of each Redis that
// takes the place of the one before, and the first; demoted that of each one that is found to be a replica. nil: nobody.
func (c RedisConfig) control(b backend, found, demoted func(server string)) (*redis.Client, *control) {
	nobody := func(string) {}
	if found == nil {
		found = nobody
	}
	if demoted == nil {
		demoted = nobody
	}
	l := &control{backend: b, timeout: c.ConnectTimeout, found: found, demoted: demoted, conns: map[net.Conn]struct{}{}}
	db := redis.NewClient(&redis.Options{
		Addr: b.String(), Username: b.username, Password: b.password, Dialer: l.dial, OnConnect: l.check,
		DialTimeout: c.ConnectTimeout, DialerRetries: 1, MaxRetries: -1, ClientName: "sonic", Protocol: 2, DisableIdentity: true,
	})
	db.AddHook(demotion{l})
	if b.sentinels != nil {
		b.sentinels.OnMove(func(string) { l.drop() })
	}
	return db, l
}

// roleEvery is how often the Redis is asked whether it is the primary still.
const roleEvery = time.Second

// watch asks, by db, until ctx ends. A process that ships and applies nothing only reads here: no error would tell it that it reads from a replica. drops is
// told whether the primary drops keys.
func (l *control) watch(ctx context.Context, db *redis.Client, drops *eviction) error {
	ticker := time.NewTicker(roleEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		text, err := db.Info(ctx, "server", "replication", "memory").Result()
		if err != nil {
			continue // who needs this Redis says what is the matter
		}
		info := infoOf(text)
		if info["role"] != "master" {
			l.drop()
			l.demoted(info["run_id"])
			continue
		}
		drops.note(evictionOf(info))
	}
}

// dial connects to the primary.
func (l *control) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	l.mu.Lock()
	round := l.round
	l.mu.Unlock()
	address, err := l.resolve(ctx)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	conn, err := dialer.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	if l.tls != nil {
		conf := l.tls.Clone()
		if conf.ServerName == "" {
			conf.ServerName, _, _ = net.SplitHostPort(address)
		}
		secured := tls.Client(conn, conf)
		if err := secured.HandshakeContext(ctx); err != nil {
			_ = conn.Close()
			return nil, err
		}
		conn = secured
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if round != l.round {
		_ = conn.Close()
		return nil, errAnother
	}
	l.conns[conn] = struct{}{}
	if _, ok := conn.(syscall.Conn); ok {
		return plainConn{controlled{conn, l}}, nil
	}
	return controlled{conn, l}, nil
}

// drop ends all connections, and those that are being made.
func (l *control) drop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropLocked()
}

func (l *control) dropLocked() {
	l.round++
	for conn := range l.conns {
		_ = conn.Close()
	}
	clear(l.conns)
}

// check finds out which Redis a new connection leads to. When it is another one than before, this connection ends, too: the next one is to it.
func (l *control) check(ctx context.Context, c *redis.Conn) error {
	text, err := c.Info(ctx, "server", "replication").Result()
	if err != nil {
		return err
	}
	info := infoOf(text)
	if info["role"] != "master" {
		l.demoted(info["run_id"])
		return replicaError{role: info["role"], host: info["master_host"], port: info["master_port"]}
	}
	l.mu.Lock()
	before, server := l.server, info["run_id"]
	l.server = server
	if before != "" && before != server {
		l.dropLocked()
	}
	l.mu.Unlock()
	switch before {
	case server:
		return nil
	case "":
		l.found(server)
		return nil
	default:
		l.found(server)
		return errAnother
	}
}

// infoOf reads the reply of INFO.
func infoOf(text string) map[string]string {
	info := map[string]string{}
	for line := range strings.SplitSeq(text, "\r\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			info[key] = value
		}
	}
	return info
}

// controlled is a connection that is known until it ends.
type controlled struct {
	net.Conn
	l *control
}

// Close implements net.Conn.
func (c controlled) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c.Conn)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// plainConn is one without encryption: the pool looks at its socket before it is used again, whether the server has closed it.
type plainConn struct{ controlled }

// SyscallConn implements syscall.Conn.
func (c plainConn) SyscallConn() (syscall.RawConn, error) {
	conn, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return conn.SyscallConn()
}

// demotion ends all connections once the Redis has become a replica: another one is the primary.
type demotion struct{ l *control }

// DialHook implements redis.Hook.
func (d demotion) DialHook(next redis.DialHook) redis.DialHook { return next }

// ProcessHook implements redis.Hook.
func (d demotion) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		d.see(err)
		return err
	}
}

// ProcessPipelineHook implements redis.Hook.
func (d demotion) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		d.see(err)
		return err
	}
}

func (d demotion) see(err error) {
	var reply redis.Error
	if errors.As(err, &reply) && strings.HasPrefix(reply.Error(), "READONLY ") {
		d.l.drop()
	}
}
