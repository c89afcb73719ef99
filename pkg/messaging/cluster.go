package messaging

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/reach"
)

// Cluster is what publishers, consumers, readers and the admin API share: the connections to one
// Pulsar cluster and their lifetime. It is safe for concurrent use.
type Cluster struct {
	log       *zap.Logger
	producers pulsar.Client
	consumers pulsar.Client
	watched   *Watched       // consumers whose log lines are read
	reach     *reach.Checker // says why nothing answers

	operationTimeout time.Duration

	life    context.Context // ends with ErrClosed when the cluster is closed: all that is open must end
	endLife context.CancelCauseFunc

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // between Enter and Leave
}

// OpenCluster prepares the connections. It connects to nothing.
func OpenCluster(cfg Config, log *zap.Logger, reg prometheus.Registerer) (*Cluster, error) {
	c := &Cluster{log: log, watched: new(Watched), operationTimeout: cfg.OperationTimeout}
	var err error
	if c.producers, err = c.connect(cfg, reg, "producer"); err != nil {
		return nil, err
	}
	if c.consumers, err = c.connect(cfg, reg, "consumer"); err != nil {
		c.producers.Close()
		return nil, err
	}
	c.life, c.endLife = context.WithCancelCause(context.Background())
	c.reach = reach.New(c.life, addressesOf(cfg.URL), cfg.ConnectTimeout)
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
		// The client's own memory limiter can lose a wake-up
		// (memory_limit_controller.go, ReleaseMemory broadcasts without the
		// lock), and producers would share it with consumers: ours replaces it.
		MemoryLimitBytes:  -1,
		Logger:            rawLogger{s: c.log.Named("pulsar").Sugar(), watched: c.watched},
		MetricsRegisterer: prometheus.WrapRegistererWith(prometheus.Labels{"role": role}, reg),
	}, auth.NewFaults(c.log.With(zap.String("role", role))))
	if err != nil {
		return nil, fmt.Errorf("messaging: %w", err)
	}
	return &rawClient{Client: raw}, nil
}

// End ends the life of all that is open. It reports whether this call did.
func (c *Cluster) End() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	c.endLife(ErrClosed)
	return true
}

// Await waits for all that runs, until ctx ends.
func (c *Cluster) Await(ctx context.Context) error {
	if !within(ctx, c.running.Wait) {
		return fmt.Errorf("messaging: consumers still running: %w", ctx.Err())
	}
	return nil
}

// Disconnect closes the connections. With a broker that answers nothing each request to close waits
// for its own timeout: when ctx ends, that goes on in the background.
func (c *Cluster) Disconnect(ctx context.Context) error {
	both := func() {
		var wg sync.WaitGroup
		wg.Go(c.producers.Close)
		wg.Go(c.consumers.Close)
		wg.Wait()
	}
	if !within(ctx, both) {
		return fmt.Errorf("messaging: closing connections: %w", ctx.Err())
	}
	return nil
}

// enter registers something that runs; leave must follow.
func (c *Cluster) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.running.Add(1)
	return nil
}

func (c *Cluster) leave() { c.running.Done() }
