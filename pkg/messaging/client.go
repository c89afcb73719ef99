package messaging

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/ask"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/flush"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/reach"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/watch"
)

// Client is the way to one Pulsar cluster. It keeps separate connections for
// publishing and for consuming, so that neither can hold up the other.
type Client struct {
	log       *zap.Logger
	metrics   *metrics
	producers pulsar.Client
	consumers pulsar.Client
	sessions  *sync.Map                  // consumer name -> *session
	admin     *admin.Client              // nil: no address
	broker    func() (ask.Broker, error) // whom Try… asks

	operationTimeout time.Duration
	waits            waits // of readers and Last

	watcher  *watch.Watcher // of the publishers' partitions
	reach    *reach.Checker // says why nothing answers
	flushers flush.Flushers

	life    context.Context // ends with ErrClosed when Close begins: all that is open must end
	endLife context.CancelCauseFunc

	mu         sync.Mutex
	closed     bool
	publishers map[*Publisher]struct{}
	running    sync.WaitGroup // consumers inside Run or Drain, and calls of the admin API
}

// Option adjusts a Client.
type Option func(*options)

type options struct {
	log *zap.Logger
	reg prometheus.Registerer
}

// WithLogger sends the client's log lines to log. Default: nowhere.
func WithLogger(log *zap.Logger) Option { return func(o *options) { o.log = log } }

// WithRegisterer registers the client's metrics, and those of the underlying
// Pulsar client, with reg. Default: metrics are kept and not exported.
func WithRegisterer(reg prometheus.Registerer) Option { return func(o *options) { o.reg = reg } }

// Dial prepares a client. It fails on a bad configuration only: connections are
// made when first needed, and made again whenever they break, so a cluster that
// is unavailable is not an error here. Close the client when done.
func Dial(ctx context.Context, cfg Config, opts ...Option) (*Client, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("messaging: %w", err)
	}
	o := options{log: zap.NewNop(), reg: prometheus.NewRegistry()}
	for _, opt := range opts {
		opt(&o)
	}
	log := o.log.Named("messaging")
	management, err := newAdmin(cfg, log)
	if err != nil {
		return nil, err
	}
	sessions := new(sync.Map)
	producers, err := newRawClient(cfg, log, o.reg, "producer", sessions)
	if err != nil {
		return nil, err
	}
	consumers, err := newRawClient(cfg, log, o.reg, "consumer", sessions)
	if err != nil {
		producers.Close()
		return nil, err
	}
	c := &Client{
		log: log, metrics: newMetrics(o.reg),
		producers: producers, consumers: consumers, sessions: sessions, admin: management,
		broker: func() (ask.Broker, error) { return newBroker(cfg, auth.NewFaults(log)) },

		operationTimeout: cfg.OperationTimeout,
		watcher:          watch.New(),
		waits:            defaultWaits(),

		publishers: make(map[*Publisher]struct{}),
	}
	c.life, c.endLife = context.WithCancelCause(context.Background())
	c.reach = reach.New(c.life, addressesOf(cfg.URL), cfg.ConnectTimeout)
	return c, nil
}

// newRawClient makes one underlying client; role labels its metrics. sessions finds the
// session of a log line.
func newRawClient(cfg Config, log *zap.Logger, reg prometheus.Registerer, role string, sessions *sync.Map) (pulsar.Client, error) {
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
		Logger:            rawLogger{s: log.Named("pulsar").Sugar(), sessions: sessions},
		MetricsRegisterer: prometheus.WrapRegistererWith(prometheus.Labels{"role": role}, reg),
	}, auth.NewFaults(log.With(zap.String("role", role))))
	if err != nil {
		return nil, fmt.Errorf("messaging: %w", err)
	}
	return &rawClient{Client: raw}, nil
}

// Close closes every publisher of the client, asks running consumers to stop,
// waits for both until ctx ends, and closes the connections. The error joins what
// the publishers report. Closing again returns nil.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return nil
	}
	c.closed = true
	c.endLife(ErrClosed)
	open := make([]*Publisher, 0, len(c.publishers))
	for p := range c.publishers {
		open = append(open, p)
	}
	c.mu.Unlock()

	errs := make([]error, len(open)+2)
	var wg sync.WaitGroup
	for i, p := range open {
		wg.Go(func() { errs[i] = p.Close(ctx) })
	}
	wg.Wait()
	if !within(ctx, c.running.Wait) {
		errs[len(open)] = fmt.Errorf("messaging: consumers still running: %w", ctx.Err())
	}
	// The connections close after everything on them. With a broker that answers
	// nothing each close request waits for its own timeout: that goes on behind.
	if !within(ctx, c.closeConnections) {
		errs[len(open)+1] = fmt.Errorf("messaging: closing connections: %w", ctx.Err())
	}
	return errors.Join(errs...)
}

func (c *Client) closeConnections() {
	var wg sync.WaitGroup
	wg.Go(c.producers.Close)
	wg.Go(c.consumers.Close)
	wg.Wait()
}

// enter registers a running consumer; leave must follow.
func (c *Client) enter() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return ErrClosed
	}
	c.running.Add(1)
	return nil
}

func (c *Client) leave() { c.running.Done() }

// newBackoff makes the policy by which the underlying client reconnects.
func newBackoff() rawbackoff.Policy { return new(backoff.Backoff) }
