package pulsar

import (
	"cmp"
	"context"
	"errors"
	"hash/maphash"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Source passes the messages of a subscription on to pipelines. A message's way: the consumer ->
// the pipeline of its partition (of a shared subscription: of its key, or the next one) -> later the
// pipeline commits a position, and everything up to it is acknowledged.
//
// After a lost connection the broker delivers unacknowledged messages again, although the pipelines
// still hold them. With exclusive and failover subscriptions the source recognises those, does not
// offer them twice, and acknowledges the new deliveries.
type Source struct {
	cfg     SourceConfig
	options connector.Options
	seed    maphash.Seed

	consumer atomic.Pointer[messaging.Consumer] // of Run

	lag *connector.Health // of Lag's requests, reported to the log
}

// NewSource implements [connector.SourceConfig].
func (c SourceConfig) NewSource(o connector.Options) connector.Source {
	o = o.WithDefaults()
	o.Log = o.Log.Named("pulsar")
	s := &Source{cfg: c, options: o, seed: maphash.MakeSeed()}
	s.lag = connector.NewHealth(func(err error) {
		if err != nil {
			s.options.Log.Warn("cannot get the lag", zap.Error(err))
		}
	})
	return s
}

// Lag is how many messages the subscription has not acknowledged, over all its processes; a batch
// counts as one. It asks the brokers' admin API, which needs admin_url. With an error, as while Run
// does not consume, it is -1. It is safe for concurrent use.
func (s *Source) Lag(ctx context.Context) (messages int64, err error) {
	consumer := s.consumer.Load()
	if consumer == nil {
		return -1, errNotRunning
	}
	messages, err = consumer.Backlog(ctx)
	if ctx.Err() == nil && !errors.Is(err, messaging.ErrNoAdminURL) && !errors.Is(err, messaging.ErrClosed) {
		// Routes show -1 without the reason. The log then says why, such as a wrong admin_url.
		s.lag.Set(connector.Connection, err)
	}
	if err != nil {
		return -1, err
	}
	return messages, nil
}

var errNotRunning = errors.New("the source does not run")

// Run consumes until ctx ends, then waits DrainTimeout for what the pipelines hold and returns nil.
// It reports unreachable brokers, refused credentials and missing topics, and tries again. It returns
// only errors that a retry cannot help, such as a subscription that exists with another type.
func (s *Source) Run(ctx context.Context, pipelines *pipeline.Set) error {
	client, err := newClient(ctx, s.cfg.Config, s.options)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		if err := client.Close(closing); err != nil {
			s.options.Log.Warn("cannot close the client", zap.Error(err))
		}
	}()
	consumer, err := client.Consumer(s.cfg.consumer())
	if err != nil {
		return err
	}
	s.consumer.Store(consumer)
	defer s.consumer.Store(nil)
	f := &sourceRun{source: s, ctx: ctx, pipelines: pipelines, partitions: make(map[string]*partition)}
	ended := make(chan error, 1)
	go func() { ended <- consumer.RunAsync(ctx, f.onMessage) }()

	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	health := connector.NewHealth(s.options.Report)
	for {
		select {
		case err := <-ended: // it cannot continue, or ctx has ended
			f.close(s.options.DrainContext)
			return err
		case <-ctx.Done():
			f.close(s.options.DrainContext)
			return <-ended
		case <-tick.C:
			health.Set(connector.Connection, consumer.Unhealthy())
		}
	}
}

// reportEvery is how often the health is checked and reported.
const reportEvery = time.Second

// sourceRun is the state of one Run.
type sourceRun struct {
	source    *Source
	ctx       context.Context // Run's: offers end with it
	pipelines *pipeline.Set

	mu         sync.Mutex
	partitions map[string]*partition // by topic; of shared subscriptions by the pipeline's name
	closed     bool

	messages int // without a key: the one worker of a shared subscription counts them
}

// onMessage handles one message of the consumer. For one partition one goroutine calls it at a time.
func (r *sourceRun) onMessage(_ context.Context, d *messaging.Delivery, pending messaging.PendingDelivery) {
	name := d.Topic
	if !r.source.cfg.partitioned() {
		name = r.sharedPipeline(d)
	}
	p := r.partition(name)
	if p == nil {
		pending.Complete(errStopping)
		return
	}
	p.offer(r.ctx, r.message(d), d.ID, pending)
}

// errStopping leaves a message unacknowledged for the next consumer of the subscription.
var errStopping = errors.New("stopping")

// sharedPipeline chooses the pipeline of a message of a shared subscription: one key's messages have
// one pipeline.
func (r *sourceRun) sharedPipeline(d *messaging.Delivery) string {
	n := uint64(r.messages)
	if key := cmp.Or(d.OrderingKey, d.Key); key != "" {
		n = maphash.String(r.source.seed, key)
	} else {
		r.messages++
	}
	return "pipeline-" + strconv.FormatUint(n%sharedPipelines, 10)
}

// message makes Pigeonhole's message of a delivery. The delivery is not used afterwards.
func (r *sourceRun) message(d *messaging.Delivery) *message.Message {
	m := message.FromPulsar(d.Key, d.Payload, d.Properties, d.EventTime)
	m.OrderingKey = d.OrderingKey
	topic, index := message.SplitPartition(d.Topic)
	m.From = message.From{
		System: system, Cluster: r.source.cfg.Cluster, Topic: topic, Partition: index, Offset: -1,
		Stored: d.PublishTime, Received: time.Now(),
	}
	if m.NeedsOrigin() {
		m.SetOrigin(d.ID.String())
	}
	return m
}

// partition returns the partition of that name, and opens its pipeline when needed; nil while stopping.
func (r *sourceRun) partition(name string) *partition {
	r.mu.Lock()
	defer r.mu.Unlock()
	p := r.partitions[name]
	if p == nil && !r.closed {
		p = &partition{ordered: r.source.cfg.partitioned()}
		p.pipeline = r.pipelines.Open(r.source.cfg.Subscription+"/"+name, p.commit)
		// An eighth of the prefetch at most waits for the commit interval.
		p.pipeline.CommitEach(max(r.source.cfg.PrefetchMessages/8, 1))
		r.partitions[name] = p
	}
	return p
}

// close drains every pipeline for DrainTimeout at most, and leaves the rest unacknowledged for the next
// consumer.
func (r *sourceRun) close(ctx context.Context) {
	r.mu.Lock()
	r.closed = true // partitions does not change any more
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, r.source.cfg.DrainTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for name, p := range r.partitions {
		wg.Go(func() {
			if err := p.pipeline.Close(ctx); err != nil {
				r.source.options.Log.Warn("stopped with messages in flight, they will be delivered again",
					zap.String("pipeline", name), zap.Error(err))
			}
			p.failWaiting()
		})
	}
	wg.Wait()
}
