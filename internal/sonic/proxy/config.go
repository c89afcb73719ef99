package proxy

import (
	"cmp"
	"crypto/tls"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/access"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
)

// WriteMode says how the proxy treats writes: see [Proxy.SetWriteMode].
type WriteMode int32

const (
	// WritesOpen runs writes.
	WritesOpen WriteMode = iota
	// WritesDelayed makes clients that write wait.
	WritesDelayed
	// WritesRefused answers writes with an error.
	WritesRefused
)

// Flush says what FLUSHDB and FLUSHALL do.
type Flush int

const (
	// FlushRefused refuses both.
	FlushRefused Flush = iota
	// FlushZone deletes this zone's keys.
	FlushZone
	// FlushReplicated deletes the keys of all zones.
	FlushReplicated
)

// Config of the proxy. New replaces zero values by the defaults named here.
type Config struct {
	// Backend is this zone's Redis.
	Backend upstream.Config
	// Cluster says which primary of a Redis Cluster has which slot. Backend.Address is then not
	// used. Commands of clients are relayed as they are, writes too, unless SlotOutboxes is set.
	// The map must be known before Serve. Default: nil, a single Redis.
	Cluster Cluster
	// SlotOutboxes says that each slot of the Redis Cluster has an outbox: the proxy sends writes as
	// calls of the library's functions, as to a single Redis. A write waits, at most for Backend.Wait,
	// while no Sonic has opened its primary. FLUSHDB and FLUSHALL are refused. Only with Cluster,
	// and without AckPublished. Default: false.
	SlotOutboxes bool
	// SplitMSET makes the proxy split an MSET whose keys are in several slots: it is not atomic then.
	// Default: false, it gets the error CROSSSLOT.
	SplitMSET bool
	// TLS of clients' connections. Default: nil, plain connections. For mutual TLS set its
	// ClientAuth and ClientCAs.
	TLS *tls.Config
	// Users that may log in. Default: none; then every client is the user "default" without a
	// password.
	Users []access.User
	// Limits of clients.
	Limits Limits
	// AckPublished makes the proxy reply to a write once the broker has stored the effect: see
	// [Proxy.Published]. Default: false, once Redis has executed the write and has its effect in the
	// outbox.
	AckPublished bool
	// Zones are the names of all zones. The proxy hides state keys with these names from clients.
	Zones []string
	// Counter reports whether a key is a counter: scripts may not declare counters. It must be fast
	// and safe for concurrent use. Default: nil, no key is a counter.
	Counter func(key []byte) bool
	// Publish says that PUBLISH also reaches the subscribers of other zones. Default: false, only
	// those of this zone. It has no effect with Cluster.
	Publish bool
	// Flush says what FLUSHDB and FLUSHALL do. Default: FlushRefused.
	Flush Flush
	// DrainTimeout bounds how long Serve waits for commands in flight when it ends. Default: 5s.
	DrainTimeout time.Duration
}

// Limits of clients.
type Limits struct {
	// Clients is how many clients may be connected at the same time. Default: 10,000.
	Clients int
	// BulkBytes is the maximum length of an argument. Default: 512 MiB.
	BulkBytes int64
	// Arguments is the maximum number of arguments of one command. Default: 1,048,576.
	Arguments int64
	// QueryBytes is the maximum size of one command, and of all queued commands of a transaction.
	// Default: 1 GiB.
	QueryBytes int64
	// OutputBytes is how many bytes of replies a client may leave unread. The proxy disconnects a
	// client that exceeds it. Default: 1 GiB.
	OutputBytes int64
	// OutputPause is how many bytes of replies a client may leave unread before the proxy stops
	// reading its commands. Default: 1 MiB.
	OutputPause int64
	// Pipeline is how many commands of one client may be in flight before the proxy stops reading
	// them. Default: 1,024.
	Pipeline int
	// AuthBulkBytes is the maximum length of an argument before a client has logged in. Default: 16
	// KiB, as in Redis.
	AuthBulkBytes int64
	// AuthTimeout bounds how long a client may take to log in. Default: 30s.
	AuthTimeout time.Duration
	// IdleTimeout is after how long the proxy disconnects a client that sends nothing. Default: 0,
	// never.
	IdleTimeout time.Duration
}

// Cluster follows a Redis Cluster. Its methods are safe for concurrent use.
type Cluster interface {
	// Map returns the present map, nil before the first one.
	Map() *cluster.Map
	// Refresh asks the cluster soon whether the map has changed. It does not block.
	Refresh()
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
	l.AuthTimeout = cmp.Or(l.AuthTimeout, 30*time.Second)
	c.Publish = c.Publish && c.Cluster == nil // there are no other zones
	c.DrainTimeout = cmp.Or(c.DrainTimeout, 5*time.Second)
	return c
}
