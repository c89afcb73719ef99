package ingest

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// Registry has the current buses.
type Registry interface{ Snapshot() *store.Snapshot }

// Preprocessor takes events by HTTP. New makes one. It is safe for concurrent use.
type Preprocessor struct {
	log       *zap.Logger
	refusals  refusal.Log
	metrics   *metrics
	limits    Limits
	timeout   time.Duration
	registry  Registry
	budget    *admission.Budget
	busTopics *busTopics
	defs      definitions
	decoders  decoders
	senders   atomic.Pointer[senders] // changed by Change
	prefix    string

	bodies  sync.Pool // of *[]byte
	parsers sync.Pool // of *event.Parser
	timers  sync.Pool // of *time.Timer, stopped
}

// New makes a preprocessor from a valid configuration. prefix is the prefix of its keys in errors,
// such as "ingest.". why returns why Pulsar cannot be reached, nil while that is not known; why may
// be nil. The errors are about the files that the configuration names.
func New(cfg Config, prefix string, known Registry, topics model.Topics, why func() error, open Open, log *zap.Logger, reg prometheus.Registerer) (*Preprocessor, error) {
	who, err := newSenders(log, cfg, prefix)
	if err != nil {
		return nil, err
	}
	m := newMetrics(reg, cfg.Limits)
	p := &Preprocessor{
		log: log, refusals: refusal.NewLog(log), metrics: m, limits: cfg.Limits, timeout: cfg.RequestTimeout, registry: known, prefix: prefix,
		budget:    admission.NewBudget(int64(cfg.Limits.InFlightBytes), cfg.share(), m.inFlightSize),
		busTopics: newBusTopics(log, topics, cfg.RequestTimeout/2, m.topics, why, open),
	}
	p.senders.Store(who)
	return p, nil
}

// share is the share of one tenant. Without tenants, all senders together are one.
func (c Config) share() float64 {
	if len(c.Tenants) == 0 {
		return 1
	}
	return c.Limits.InFlightShare
}

// Memory is about how many bytes the configuration lets ingestion hold with so many buses.
func (c Config) Memory(buses int) int64 {
	const pendingOverhead = 1536 // of a record in the Pulsar client
	return int64(c.Limits.InFlightBytes) + int64(buses)*int64(c.Profile.MaxPendingRecords)*pendingOverhead
}

// Change puts the tenants of another valid configuration in force. What is left of their quotas
// stays. After an error nothing is changed.
func (p *Preprocessor) Change(cfg Config) error {
	fresh, err := newSenders(p.log, cfg, p.prefix)
	if err != nil {
		return err
	}
	former := p.senders.Load().tenants
	for _, t := range cfg.Tenants {
		if known := former[t.Name]; known != nil {
			fresh.tenants[t.Name].inherit(known, t.Quota)
		}
	}
	p.budget.SetShare(cfg.share())
	p.senders.Store(fresh)
	return nil
}

// Routes adds POST and OPTIONS of /v1/buses/{bus}/events.
func (p *Preprocessor) Routes(r chi.Router) {
	const path = "/v1/buses/{bus}/events"
	r.Post(path, p.serve)
	r.Options(path, answerHandshake)
}

// ConnState counts the connections of the server.
func (p *Preprocessor) ConnState(conn net.Conn, state http.ConnState) {
	p.metrics.connState(conn, state)
}

// Run closes the topics of deleted buses, until ctx ends.
func (p *Preprocessor) Run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			now := p.registry.Snapshot()
			p.busTopics.sweep(now)
			p.defs.sweep(now)
		}
	}
}

// Check is the readiness check: an error when there are topics and none of them takes events.
func (p *Preprocessor) Check(context.Context) error { return p.busTopics.check() }

// Close flushes and closes the topics. The server must have stopped.
func (p *Preprocessor) Close(ctx context.Context) error { return p.busTopics.close(ctx) }
