package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Cluster is what publishers, consumers, readers and the admin API share: the connections to one
// Pulsar cluster and their lifetime. It is safe for concurrent use.
type Cluster struct {
	Log       *zap.Logger
	Producers pulsar.Client
	Consumers pulsar.Client
	Watched   *clientquirks.Watched // consumers whose log lines are read
	Reach     *Connectivity         // says why nothing answers

	OperationTimeout time.Duration

	Life    context.Context // ends with ErrClosed when the cluster is closed: all that is open must end
	endLife context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // between Enter and Leave
}

// Open prepares the connections. It connects to nothing.
func Open(cfg Config, log *zap.Logger, reg prometheus.Registerer) (*Cluster, error) {
	c := &Cluster{Log: log, Watched: new(clientquirks.Watched), OperationTimeout: cfg.OperationTimeout}
	var err error
	if c.Producers, err = c.connect(cfg, reg, "producer"); err != nil {
		return nil, err
	}
	if c.Consumers, err = c.connect(cfg, reg, "consumer"); err != nil {
		c.Producers.Close()
		return nil, err
	}
	c.Life, c.endLife = context.WithCancelCause(context.Background())
	c.Reach = NewConnectivity(c.Life, addressesOf(cfg.URL), cfg.ConnectTimeout)
	return c, nil
}

// connect makes one underlying client; role labels its metrics.
func (c *Cluster) connect(cfg Config, reg prometheus.Registerer, role string) (pulsar.Client, error) {
	raw, err := cfg.dialRaw(pulsar.ClientOptions{
		URL:                     cfg.URL,
		ConnectionTimeout:       cfg.ConnectTimeout,
		OperationTimeout:        cfg.OperationTimeout,
		KeepAliveInterval:       cfg.KeepAlive,
		MaxConnectionsPerBroker: cfg.ConnectionsPerBroker,
		ListenerName:            cfg.ListenerName,
		Logger:                  clientquirks.NewLogger(c.Log.Named("pulsar"), c.Watched),
		MetricsRegisterer:       prometheus.WrapRegistererWith(prometheus.Labels{"role": role}, reg),
	}, auth.NewFaults(c.Log.With(zap.String("role", role))))
	if err != nil {
		return nil, fmt.Errorf("messaging: %w", err)
	}
	return raw, nil
}

// End ends the life of all that is open. It reports whether this call did.
func (c *Cluster) End() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	c.endLife(record.ErrClosed)
	return true
}

// Await waits for all that runs, until ctx ends.
func (c *Cluster) Await(ctx context.Context) error {
	if !clientquirks.Within(ctx, c.running.Wait) {
		return fmt.Errorf("messaging: consumers still running: %w", ctx.Err())
	}
	return nil
}

// Disconnect closes the connections. With a broker that answers nothing each request to close waits
// for its own timeout: when ctx ends, that continues in the background.
func (c *Cluster) Disconnect(ctx context.Context) error {
	both := func() {
		var wg sync.WaitGroup
		wg.Go(c.Producers.Close)
		wg.Go(c.Consumers.Close)
		wg.Wait()
	}
	if !clientquirks.Within(ctx, both) {
		return fmt.Errorf("messaging: closing connections: %w", ctx.Err())
	}
	return nil
}

// Enter registers something that runs; leave must follow.
func (c *Cluster) Enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return record.ErrClosed
	}
	c.running.Add(1)
	return nil
}

// Leave ends what Enter began.
func (c *Cluster) Leave() { c.running.Done() }
