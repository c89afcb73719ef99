package cluster

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Config says how to reach a Redis Cluster.
type Config struct {
	// Addresses of some of its nodes, host:port. The nodes that these know are asked, too.
	Addresses []string
	// Username and Password for AUTH to each node. Default: none.
	Username, Password string
	// TLS to each node. Default: nil, plain. An empty ServerName is the host of the node's address.
	TLS *tls.Config
}

const (
	// requestTimeout bounds one request, with its connect.
	requestTimeout = time.Second
	// pollInterval is the longest time between two questions. Nobody calls Refresh for a change that no
	// command has met.
	pollInterval = 5 * time.Second
	// refreshInterval is the shortest time from an answer to the next question.
	refreshInterval = 50 * time.Millisecond
	// lowerEpochAfter is how long a map stays in use when the nodes that answer have only lower epochs.
	// Nodes exchange their epochs within a second or two.
	lowerEpochAfter = 10 * time.Second
)

// Cluster follows a Redis Cluster: it asks its nodes which primary has which slots. All methods are
// safe for concurrent use.
type Cluster struct {
	cfg      Config
	log      *zap.Logger
	state    *health.State
	current  atomic.Pointer[Map]
	refresh  chan struct{} // holds one element if Refresh was called since the last question
	onChange func()

	ask func(ctx context.Context, address string) (view, error) // asks one node

	// The rest is of Run's goroutine.
	clients  map[string]*redis.Client // by address
	nodes    []*node
	asked    int       // how many questions there have been
	epoch    int64     // of the last view taken
	answered time.Time // when a view was last taken
}

// node is a node of the cluster, or a configured address.
type node struct {
	address string
	known   bool // the last view has it
	failed  bool // its last question had no usable answer
	asked   int  // the number of its last question
}

// view is what one node says of the cluster.
type view struct {
	epoch  int64 // the highest that it knows: each failover has its own, and the highest is the newest
	ranges []Range
	nodes  []string // addresses of all primaries with slots, and of their replicas
}

// New returns a Cluster that knows nothing yet. It sends no request before [Cluster.Run].
func New(cfg Config, log *zap.Logger) *Cluster {
	log = log.Named("cluster")
	c := &Cluster{cfg: cfg, log: log, state: health.New(log), refresh: make(chan struct{}, 1), clients: map[string]*redis.Client{}, onChange: func() {}}
	c.ask = c.askNode
	c.setNodes(nil)
	return c
}

// OnChange makes Run call f for the first map, and for each one that differs from the one before.
// [Cluster.Map] returns it already. f must return soon. OnChange must not be called after Run.
func (c *Cluster) OnChange(f func()) { c.onChange = f }

// Map returns the latest map, nil before the first answer. While no node answers, it is the last
// known one. It can be out of date: the nodes say MOVED then, and the caller calls Refresh.
func (c *Cluster) Map() *Map { return c.current.Load() }

// Err returns why no node answers at present, nil if one does, and before the first question.
func (c *Cluster) Err() error { return c.state.Current() }

// Refresh makes Run ask the cluster again soon: at once, or 50 ms after the last answer. It does
// not block. Calls before the question have one answer in common.
func (c *Cluster) Refresh() {
	select {
	case c.refresh <- struct{}{}:
	default:
	}
}

// Run follows the cluster until ctx ends, and returns nil. It asks every 5 s, after [Cluster.Refresh],
// and more often while no node answers.
func (c *Cluster) Run(ctx context.Context) error {
	defer c.closeClients(func(string) bool { return true })
	var pause backoff.Backoff
	for {
		err := c.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		c.state.Set(err)
		wait := pollInterval
		if err != nil {
			wait = pause.Next()
		} else {
			pause.Reset()
		}
		if !backoff.Sleep(ctx, refreshInterval) || !c.await(ctx, wait-refreshInterval) {
			return nil
		}
	}
}

// await waits for d, or less when Refresh is called. It returns false when ctx ends.
func (c *Cluster) await(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.refresh:
	case <-ctx.Done():
		return false
	}
	return true
}

// round asks one node after the other until one has a view that is not older than the last one
// taken. It returns why no node answers.
//
// Nodes disagree for a moment after a change, and one that was cut off from the others does until
// it is back. The lower epoch is the older view, but not always: a slot that was moved need not raise
// it, and nodes know the epoch of a failover before they know its outcome. So each round begins
// with another node. A wrong map costs a redirection, the redirection calls Refresh, and the next
// node has the right one.
//
// Lower epochs are right if the cluster was created again: they are accepted after a while.
func (c *Cluster) round(ctx context.Context) error {
	// A node that failed is asked last: it may take the whole time-out.
	slices.SortStableFunc(c.nodes, func(a, b *node) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.asked, b.asked))
	})
	var newest *view
	var errs []error
	for _, n := range c.nodes {
		v, err := c.ask(ctx, n.address)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.asked++
		n.asked, n.failed = c.asked, err != nil
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", n.address, err))
		case v.epoch >= c.epoch:
			c.take(v)
			return nil
		case newest == nil || v.epoch > newest.epoch:
			newest = &v
		}
	}
	if newest == nil {
		return errors.Join(errs...)
	}
	if time.Since(c.answered) >= lowerEpochAfter {
		c.take(*newest)
	}
	return nil
}

// rank orders the nodes of a round: those that failed come last, and of the others those that the
// last view has come first.
func (n *node) rank() (rank int) {
	if n.failed {
		rank = 2
	}
	if !n.known {
		rank++
	}
	return rank
}

// take makes a view the current one.
func (c *Cluster) take(v view) {
	c.epoch, c.answered = v.epoch, time.Now()
	c.setNodes(v.nodes)
	before, now := c.current.Load(), NewMap(v.ranges)
	if before != nil && now.Equal(before) {
		return
	}
	c.current.Store(now)
	c.logChange(before, now)
	c.onChange()
}

// setNodes sets which nodes are asked: those of the last view, and the configured addresses.
func (c *Cluster) setNodes(known []string) {
	before := c.nodes
	c.nodes = nil
	at := func(nodes []*node, address string) int {
		return slices.IndexFunc(nodes, func(n *node) bool { return n.address == address })
	}
	for i, address := range slices.Concat(known, c.cfg.Addresses) {
		if at(c.nodes, address) >= 0 {
			continue
		}
		n := &node{address: address}
		if old := at(before, address); old >= 0 {
			n = before[old]
		}
		n.known = i < len(known)
		c.nodes = append(c.nodes, n)
	}
	c.closeClients(func(address string) bool { return at(c.nodes, address) < 0 })
}

// closeClients closes the connections to the nodes that gone reports.
func (c *Cluster) closeClients(gone func(address string) bool) {
	for address, client := range c.clients {
		if gone(address) {
			_ = client.Close()
			delete(c.clients, address)
		}
	}
}

// logChange logs what differs between two maps. before is nil for the first one.
func (c *Cluster) logChange(before, now *Map) {
	fields := []zap.Field{
		zap.Int("primaries", len(now.Primaries())), zap.Int("slots_without_primary", now.Count("")), zap.Int64("epoch", c.epoch),
	}
	if before == nil {
		c.log.Info("found the cluster", fields...)
		return
	}
	if added := without(now.Primaries(), before.Primaries()); len(added) > 0 {
		fields = append(fields, zap.Strings("added", added))
	}
	if removed := without(before.Primaries(), now.Primaries()); len(removed) > 0 {
		fields = append(fields, zap.Strings("removed", removed))
	}
	moved := 0
	for slot := range Slots {
		if before.Owner(slot) != now.Owner(slot) {
			moved++
		}
	}
	c.log.Info("slots have other primaries now", append(fields, zap.Int("slots_moved", moved))...)
}

// without returns the addresses of the primaries that others does not have.
func without(primaries, others []Primary) (addresses []string) {
	for _, p := range primaries {
		if !slices.Contains(others, p) {
			addresses = append(addresses, p.Address)
		}
	}
	return addresses
}
