package messaging

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/ask"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/consume"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/redrive"
)

// Client is the connection to one Pulsar cluster. It keeps separate connections for
// publishing and for consuming, so that neither can hold up the other. It is safe for concurrent
// use.
type Client struct {
	cluster    *cluster.Cluster
	admin      *adminapi.API
	readers    *read.Readers
	publishers *publish.Publishers
	consumers  *consume.Consumers

	redriveIdle time.Duration

	broker func() (ask.Broker, error) // whom Try… asks
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
	cfg = cluster.WithDefaults(cfg)
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("messaging: %w", err)
	}
	o := options{log: zap.NewNop(), reg: prometheus.NewRegistry()}
	for _, opt := range opts {
		opt(&o)
	}
	log := o.log.Named("messaging")
	shared, err := cluster.Open(cfg, log, o.reg)
	if err != nil {
		return nil, err
	}
	c := &Client{
		cluster: shared, redriveIdle: redrive.Idle,
		broker: func() (ask.Broker, error) { return cluster.NewBroker(cfg, auth.NewFaults(log)) },
	}
	if c.admin, err = adminapi.New(shared, cfg); err != nil {
		_ = shared.Disconnect(ctx)
		return nil, err
	}
	c.readers = read.NewReaders(shared, o.reg)
	c.publishers = publish.NewPublishers(shared, c.readers, o.reg)
	c.consumers = consume.NewConsumers(shared, c.admin, c.publishers, o.reg)
	return c, nil
}

// Close closes every publisher of the client, asks running consumers to stop,
// waits for both until ctx ends, and closes the connections. The error joins what
// the publishers report. Closing again returns nil.
func (c *Client) Close(ctx context.Context) error {
	if !c.cluster.End() {
		return nil
	}
	// The connections close after everything on them.
	return errors.Join(c.publishers.Close(ctx), c.cluster.Await(ctx), c.cluster.Disconnect(ctx))
}

// Config says how to reach one Pulsar cluster.
type Config = cluster.Config

// TLS configures the transport of pulsar+ssl and https URLs, version 1.2 or newer.
type TLS = cluster.TLS

// Auth holds at most one way of authenticating.
type Auth = cluster.Auth

// OAuth2 configures the client credentials flow (RFC 6749, section 4.4).
type OAuth2 = cluster.OAuth2

// DefaultConfig is the configuration of a broker on this machine.
func DefaultConfig() Config { return cluster.DefaultConfig() }
