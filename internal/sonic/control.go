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

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// control makes the connections that do not carry clients' commands, and makes sure that all lead
// to the same Redis server: data of one primary must not be mixed with data of its successor. When
// control finds another server at the address, it closes all connections. Their users see a lost
// connection.
type control struct {
	backend
	onPrimary func(server string) // called with the run_id of the first Redis, and of each one that replaces another
	onReplica func(server string) // called with the run_id of a Redis that is a replica

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	round  int    // increases each time control closes all connections
	server string // the run_id of the present Redis
	epoch  int64  // the latest epoch of the zone's effects that a Redis had; see checkServer
	serves bool   // this process is a Sonic, not one of its commands
}

// Errors of a connection that leads to the wrong Redis.
var (
	errOtherRedis = errors.New("redis.url leads to a different Redis now")
	errReplica    = errors.New("this Redis is a replica")
)

// replicaError is errReplica with details of the Redis. It does not wrap errReplica: of an error
// from OnConnect go-redis returns only the wrapped one, without the details.
type replicaError struct{ role, host, port string }

func (e replicaError) Error() string {
	return fmt.Sprintf("its role is %s, of %s:%s: give the address of the master", e.role, e.host, e.port)
}

func (e replicaError) Is(target error) bool { return target == errReplica }

// disableClientLog turns the log of the client library off. It would write a line to standard error
// for each attempt, without regard to log.level and log.format. The callers get the errors and log
// them once.
func disableClientLog() { logging.Disable() }

// control returns a Redis client for all requests that are not clients' commands. For onPrimary and
// onReplica see the type control; both are nil in commands.
func (b backend) control(onPrimary, onReplica func(server string)) (*redis.Client, *control) {
	serves := onPrimary != nil
	if !serves {
		onPrimary, onReplica = func(string) {}, func(string) {}
	}
	l := &control{backend: b, onPrimary: onPrimary, onReplica: onReplica, conns: map[net.Conn]struct{}{}, serves: serves}
	o := b.options(b.String())
	o.Dialer, o.OnConnect = l.dial, l.checkServer
	db := redis.NewClient(o)
	db.AddHook(readOnlyHook{l})
	if b.sentinels != nil {
		b.sentinels.OnMove(func(string) { l.closeAll() })
	}
	return db, l
}

// roleInterval is how often watch asks Redis whether it is still the primary.
const roleInterval = time.Second

// watchRole checks the role of Redis until ctx ends. A process that neither ships nor applies
// effects only reads: without this check no error would show that it reads from a replica.
// watchRole also records in m how the primary uses its memory.
func (l *control) watchRole(ctx context.Context, db *redis.Client, m *memory) error {
	for backoff.Sleep(ctx, roleInterval) {
		text, err := db.Info(ctx, "server", "replication", "memory").Result()
		if err != nil {
			continue // the parts that use this Redis log the error
		}
		info := infoOf(text)
		if info["role"] != "master" {
			l.closeAll()
			l.onReplica(info["run_id"])
			continue
		}
		if epoch, err := readEpoch(ctx, db); err == nil {
			l.mu.Lock()
			l.epoch = max(l.epoch, epoch)
			l.mu.Unlock()
		}
		m.update(l.String(), info)
	}
	return nil
}

// dial connects to the primary.
func (l *control) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	l.mu.Lock()
	round := l.round
	l.mu.Unlock()
	address, err := l.resolve(ctx)
	if err != nil {
		return nil, err
	}
	dialer := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}}
	connect := dialer.DialContext
	if l.tls != nil {
		connect = (&tls.Dialer{NetDialer: &dialer, Config: l.tls}).DialContext // the server name is the host unless tls has one
	}
	conn, err := connect(ctx, network, address)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if round != l.round {
		_ = conn.Close()
		return nil, errOtherRedis
	}
	l.conns[conn] = struct{}{}
	if _, ok := conn.(syscall.Conn); ok {
		return plainConn{trackedConn{conn, l}}, nil
	}
	return trackedConn{conn, l}, nil
}

// closeAll closes all connections, including those that are being made.
func (l *control) closeAll() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closeAllLocked()
}

func (l *control) closeAllLocked() {
	l.round++
	for conn := range l.conns {
		_ = conn.Close()
	}
	clear(l.conns)
}

// checkServer finds out which Redis a new connection leads to. If that is another one than before,
// checkServer closes all connections and this one, too. The next connection is accepted.
//
// A former primary may return, and still be open for writes. Its epoch is lower than that of its
// successor. checkServer then closes it for writes: a Sonic must compare it with the topic first.
func (l *control) checkServer(ctx context.Context, c *redis.Conn) error {
	text, err := c.Info(ctx, "server", "replication").Result()
	if err != nil {
		return err
	}
	info := infoOf(text)
	if info["role"] != "master" {
		l.onReplica(info["run_id"])
		return replicaError{role: info["role"], host: info["master_host"], port: info["master_port"]}
	}
	epoch, err := readEpoch(ctx, c)
	if err != nil {
		return err
	}
	l.mu.Lock()
	before, server := l.server, info["run_id"]
	former := l.serves && before != "" && before != server && epoch < l.epoch
	l.mu.Unlock()
	if former {
		if err := redislib.New(c, redislib.Config{}).Close(ctx); err != nil && !redislib.NoFunction(err) {
			return err
		}
	}
	l.mu.Lock()
	l.server, l.epoch = server, max(l.epoch, epoch)
	if before != "" && before != server {
		l.closeAllLocked()
	}
	l.mu.Unlock()
	switch before {
	case server:
		return nil
	case "":
		l.onPrimary(server)
		return nil
	default:
		l.onPrimary(server)
		return errOtherRedis
	}
}

// readEpoch returns the epoch of the zone's effects. It is 0 for a Redis that no Sonic has opened,
// or that refuses the request: other requests then report why.
func readEpoch(ctx context.Context, c redis.Cmdable) (int64, error) {
	epoch, err := c.HGet(ctx, script.KeysOf(0).Meta, "epoch").Int64()
	var refused redis.Error
	if errors.As(err, &refused) {
		return 0, nil
	}
	return epoch, err
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

// trackedConn is a connection that control keeps in conns until it is closed.
type trackedConn struct {
	net.Conn
	l *control
}

func (c trackedConn) Close() error {
	c.l.mu.Lock()
	delete(c.l.conns, c.Conn)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// plainConn is a connection without encryption. Before reusing it, the pool of go-redis checks its
// socket to see whether the server has closed it.
type plainConn struct{ trackedConn }

func (c plainConn) SyscallConn() (syscall.RawConn, error) {
	conn, ok := c.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	return conn.SyscallConn()
}

// readOnlyHook closes all connections when an error shows that this Redis has become a replica:
// another Redis is now the primary.
type readOnlyHook struct{ l *control }

func (d readOnlyHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (d readOnlyHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		d.checkError(err)
		return err
	}
}

func (d readOnlyHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		d.checkError(err)
		return err
	}
}

func (d readOnlyHook) checkError(err error) {
	if script.IsReply(err, "READONLY ") {
		d.l.closeAll()
	}
}
