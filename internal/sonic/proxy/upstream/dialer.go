// Package upstream connects the proxy to Redis, keeps track of which Redis is the primary, and
// reads the redirections of a Redis Cluster. It may not import access, request or replies:
// connections are independent of clients and commands.
package upstream

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/tlsrelay"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// Config says how to connect to a Redis.
type Config struct {
	// Address is host:port, or the path of a Unix socket.
	Address string
	// Resolve, if not nil, returns the address before each connect, so that connections follow a
	// failover by Sentinel.
	Resolve func(context.Context) (string, error)
	// Username and Password for AUTH. Default: none.
	Username, Password string
	// TLS to Redis. Default: nil, plain.
	TLS *tls.Config
	// DB is the database in which clients begin. Default: 0.
	DB int
	// DialTimeout bounds a connect with its handshake. Default: 5s.
	DialTimeout time.Duration
	// Wait is how long commands that the proxy has not sent yet wait while Redis is unreachable.
	// Default: 5s.
	Wait time.Duration
}

// Dialer connects to Redis. It remembers the limits and the version that Redis has reported, and
// which Redis is the primary. All methods are safe for concurrent use.
type Dialer struct {
	cfg     *Config
	relays  *tlsrelay.Relays
	cluster bool

	databases       atomic.Int64
	longestArgument atomic.Int64 // longest argument that Redis accepts, in bytes
	queryLimit      atomic.Int64 // limit of Redis' query buffer, in bytes
	version         atomic.Pointer[string]

	mu      sync.Mutex
	primary atomic.Pointer[Primary] // nil: not known
}

// New returns a dialer that assumes Redis' defaults until the first connect.
// A Redis Cluster has one database.
func New(cfg *Config, relays *tlsrelay.Relays, cluster bool) *Dialer {
	d := &Dialer{cfg: cfg, relays: relays, cluster: cluster}
	d.databases.Store(16)
	if cluster {
		d.databases.Store(1)
	}
	d.longestArgument.Store(512 << 20)
	d.queryLimit.Store(1 << 30)
	return d
}

// Databases returns how many databases Redis has.
func (d *Dialer) Databases() int64 { return d.databases.Load() }

// LongestArgument returns how long an argument of a command may be, in bytes.
func (d *Dialer) LongestArgument() int64 { return d.longestArgument.Load() }

// TransactionBytes returns how large a transaction may be. Redis closes a connection with a larger
// one.
func (d *Dialer) TransactionBytes() int64 { return d.queryLimit.Load() - queryRest }

// Version returns the version of Redis.
func (d *Dialer) Version() string {
	if v := d.version.Load(); v != nil {
		return *v
	}
	return "7.0.0"
}

// Dial connects to Redis and logs in. It returns a socket for the event loop, and the server that
// it leads to. primary is the address of a primary of a Redis Cluster, empty for a single Redis.
func (d *Dialer) Dial(ctx context.Context, primary string, db, proto int) (fd int, to Server, err error) {
	cfg := d.cfg
	ctx, cancel := context.WithTimeout(ctx, cfg.DialTimeout)
	defer cancel()
	to = Server{Address: cfg.Address, known: d.primary.Load()}
	if primary != "" {
		to.Address = primary
	} else if cfg.Resolve != nil {
		if to.Address, err = cfg.Resolve(ctx); err != nil {
			return -1, to, fmt.Errorf("cannot find the address of Redis: %w", err)
		}
	}
	network := "tcp"
	if strings.HasPrefix(to.Address, "/") {
		network = "unix"
	}
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, network, to.Address)
	if err != nil {
		return -1, to, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	var secured *tls.Conn
	talk := conn
	if cfg.TLS != nil {
		conf := cfg.TLS.Clone()
		if conf.ServerName == "" {
			conf.ServerName, _, _ = net.SplitHostPort(to.Address)
		}
		secured = tls.Client(conn, conf)
		talk = secured
	}
	if err = d.handshake(talk, db, proto, &to); err != nil {
		stop()
		_ = conn.Close()
		return -1, to, err
	}
	if !stop() {
		_ = conn.Close()
		return -1, to, ctx.Err()
	}
	if secured == nil {
		fd, err = eventloop.TakeSocket(conn)
	} else {
		fd, err = d.relays.Client(secured)
	}
	return fd, to, err
}

// ErrReplica says that the Redis is a replica, which takes no writes.
var ErrReplica = errors.New("this Redis is a replica")

// handshake logs in, selects the db, and notes what the server says of itself. It fails if Redis sends
// more than the replies.
func (d *Dialer) handshake(conn net.Conn, db, proto int, to *Server) error {
	cfg := d.cfg
	var out []byte
	ask := [][]string{}
	if cfg.Password != "" {
		auth := []string{"AUTH", cfg.Password}
		if cfg.Username != "" {
			auth = []string{"AUTH", cfg.Username, cfg.Password}
		}
		ask = append(ask, auth)
	}
	ask = append(ask,
		[]string{"INFO", "server"},
		[]string{"ROLE"},
		[]string{"CONFIG", "GET", "databases", "proto-max-bulk-len", "client-query-buffer-limit"},
		[]string{"HELLO", strconv.Itoa(proto)},
		[]string{"CLIENT", "SETNAME", "sonic"},
		[]string{"SELECT", strconv.Itoa(db)},
	)
	for _, words := range ask {
		out = resp.AppendCommand(out, words...)
	}
	if _, err := conn.Write(out); err != nil {
		return err
	}
	in := bufio.NewReader(conn)
	for _, words := range ask {
		reply, err := resp.ReadReply(in)
		if err != nil {
			return fmt.Errorf("no reply to %s: %w", words[0], err)
		}
		if reply[0] == '-' && words[0] != "CONFIG" { // an ACL may forbid CONFIG: the defaults then apply
			return fmt.Errorf("redis refuses %s: %s", words[0], resp.Text(reply))
		}
		switch words[0] {
		case "INFO":
			to.RunID = d.storeVersion(string(resp.Text(reply)))
		case "ROLE":
			if role := resp.FirstWord(reply); string(role) != "master" {
				return fmt.Errorf("%w: its role is %s", ErrReplica, role)
			}
		case "CONFIG":
			d.storeLimits(reply)
		case "HELLO":
			fields := resp.Elements(reply)
			for i := 0; i+1 < len(fields); i += 2 {
				if string(resp.Text(fields[i])) == "id" {
					to.ClientID = string(resp.Text(fields[i+1]))
				}
			}
		}
	}
	if in.Buffered() > 0 {
		return errors.New("redis sent more replies than it had commands to answer")
	}
	return nil
}

// queryRest is how many bytes Redis' query buffer may hold besides the longest argument. Redis
// closes a connection whose query buffer exceeds its limit.
const queryRest = 64 << 10

// storeLimits stores the limits from the reply to CONFIG GET.
func (d *Dialer) storeLimits(reply []byte) {
	settings := resp.Elements(reply)
	bulk, query := d.longestArgument.Load(), d.queryLimit.Load()
	for i := 0; i+1 < len(settings); i += 2 {
		n, ok := resp.ParseInt(resp.Text(settings[i+1]))
		switch name := string(resp.Text(settings[i])); {
		case !ok:
		case name == "databases":
			if !d.cluster {
				d.databases.Store(n)
			}
		case name == "proto-max-bulk-len":
			bulk = n
		case name == "client-query-buffer-limit":
			query = n
		}
	}
	d.queryLimit.Store(query)
	d.longestArgument.Store(min(bulk, query-queryRest))
}

// storeVersion stores the version, and returns the run_id, which is different for each process of
// Redis.
func (d *Dialer) storeVersion(info string) (server string) {
	for line := range strings.Lines(info) {
		switch name, value, _ := strings.Cut(strings.TrimSpace(line), ":"); name {
		case "redis_version":
			d.version.Store(&value)
		case "run_id":
			server = value
		}
	}
	return server
}
