package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"
)

// Ack is what a reply to a write promises.
type Ack int

const (
	// AckLocal replies once Redis has executed the write and noted it in the outbox.
	AckLocal Ack = iota
	// AckPublished replies once the broker has the write, too: see [Proxy.Shipped].
	AckPublished
)

// Writes is what becomes of writes: see [Proxy.SetWrites].
type Writes int32

const (
	// WritesOpen runs writes.
	WritesOpen Writes = iota
	// WritesHeld lets clients that write wait.
	WritesHeld
	// WritesRefused answers writes with an error.
	WritesRefused
)

// Config of the endpoint. New fills zero values with the defaults said here.
type Config struct {
	// Backend is this zone's Redis.
	Backend Backend
	// TLS of the endpoint. Default: nil, plain connections. For mutual TLS set its ClientAuth and ClientCAs.
	TLS *tls.Config
	// Users that may log in. Default: none; then everybody is "default" and needs no password.
	Users []User
	// Limits of clients.
	Limits Limits
	// Ack is what a reply to a write promises. Default: AckLocal.
	Ack Ack
	// Lanes of effects. Default and only value: 1.
	Lanes int
	// Loops is the number of event loops. Default: 1.
	Loops int
	// Zones are the names of all zones. State keys that bear a zone's name are hidden from clients.
	Zones []string
	// Counter tells which keys are counters: scripts may not declare them. It must be fast and safe for concurrent use. Default: nil, none.
	Counter func(key []byte) bool
	// Publish sends PUBLISH to the other zones, too. Default: false, subscribers of this zone only.
	Publish bool
	// DrainTimeout bounds how long Serve waits for commands under way when it ends. Default: 5s.
	DrainTimeout time.Duration
}

// Backend is a Redis.
type Backend struct {
	// Address is host:port, or the path of a Unix socket.
	Address string
	// Resolve, when not nil, is asked for the address before each connect. A failover by Sentinel is followed so.
	Resolve func(context.Context) (string, error)
	// Username and Password for AUTH. Default: none.
	Username, Password string
	// TLS to Redis. Default: nil, plain.
	TLS *tls.Config
	// DB in which clients begin. Default: 0.
	DB int
	// DialTimeout bounds a connect with its handshake. Default: 5s.
	DialTimeout time.Duration
	// Wait is how long commands that were not sent yet wait for a Redis that is away. Default: 5s.
	Wait time.Duration
}

// User is who may log in with AUTH or HELLO.
type User struct {
	// Name is "default" for AUTH with a password only.
	Name     string
	Password string
	// ReadOnly refuses writes.
	ReadOnly bool
	// Keys are prefixes: the user may name only keys that begin with one of them. Default: none, all keys.
	Keys []string
}

// Limits of clients.
type Limits struct {
	// Clients at the same time. Default: 10,000.
	Clients int
	// BulkBytes is the longest argument. Default: 512 MiB.
	BulkBytes int64
	// Arguments of one command. Default: 1,048,576.
	Arguments int64
	// QueryBytes of one command, and of all queued commands of a MULTI. Default: 1 GiB.
	QueryBytes int64
	// OutputBytes of replies that wait for one client. A client with more is disconnected. Default: 1 GiB.
	OutputBytes int64
	// OutputPause is from where on nothing more is read from a client. Default: 1 MiB.
	OutputPause int64
	// Pipeline is how many commands of one client may be under way before no more are read. Default: 1,024.
	Pipeline int
	// AuthBulkBytes is the longest argument before a client has logged in. Default: 16 KiB, as Redis has it.
	AuthBulkBytes int64
	// AuthArguments of one command before a client has logged in. Default: 10, as Redis has it.
	AuthArguments int64
	// AuthTimeout bounds how long a client may take to log in. Default: 30s.
	AuthTimeout time.Duration
	// IdleTimeout closes a client that sends nothing. Default: 0, never.
	IdleTimeout time.Duration
}

func (c Config) withDefaults() Config {
	b, l := &c.Backend, &c.Limits
	b.DialTimeout = cmp.Or(b.DialTimeout, 5*time.Second)
	b.Wait = cmp.Or(b.Wait, 5*time.Second)
	l.Clients = cmp.Or(l.Clients, 10_000)
	l.BulkBytes = cmp.Or(l.BulkBytes, 512<<20)
	l.Arguments = cmp.Or(l.Arguments, 1<<20)
	l.QueryBytes = cmp.Or(l.QueryBytes, 1<<30)
	l.OutputBytes = cmp.Or(l.OutputBytes, 1<<30)
	l.OutputPause = cmp.Or(l.OutputPause, 1<<20)
	l.Pipeline = cmp.Or(l.Pipeline, 1024)
	l.AuthBulkBytes = cmp.Or(l.AuthBulkBytes, 16<<10)
	l.AuthArguments = cmp.Or(l.AuthArguments, 10)
	l.AuthTimeout = cmp.Or(l.AuthTimeout, 30*time.Second)
	c.Lanes = cmp.Or(c.Lanes, 1)
	c.Loops = cmp.Or(c.Loops, 1)
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 5*time.Second)
	return c
}

func (c Config) validate() error {
	var errs []error
	if c.Backend.Address == "" && c.Backend.Resolve == nil {
		errs = append(errs, errors.New("the address of Redis is missing"))
	}
	if c.Lanes != 1 {
		errs = append(errs, fmt.Errorf("%d lanes: only 1 is possible", c.Lanes))
	}
	if c.Loops < 1 || c.Loops > 64 {
		errs = append(errs, fmt.Errorf("%d event loops: must be 1 to 64", c.Loops))
	}
	if c.Backend.DB < 0 {
		errs = append(errs, fmt.Errorf("db %d: must be >= 0", c.Backend.DB))
	}
	names := map[string]bool{}
	for _, u := range c.Users {
		if u.Name == "" || names[u.Name] {
			errs = append(errs, fmt.Errorf("user %q: each user needs a name of its own", u.Name))
		}
		names[u.Name] = true
	}
	return errors.Join(errs...)
}
