package pulsar

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Source passes the messages of a subscription on to lanes. A message's way: the
// consumer hands it over -> the lane of its partition (of a shared subscription: of its
// key, or the next one) -> later the lane commits a position, and everything up to it is
// acknowledged.
//
// A process that is killed leaves unacknowledged what was not committed, and the broker
// delivers that again. A connection that breaks, or a session that the broker ends, does
// the same while the messages are still in our lanes: those are recognised and not
// passed on twice (exclusive and failover), and what is committed of them counts again.
type Source struct {
	cfg     SourceConfig
	o       Options
	seed    maphash.Seed
	running sync.Mutex

	consumer atomic.Pointer[messaging.Consumer] // of Run

	lagMu      sync.Mutex
	lagTrouble reporter // to the log
}

// NewSource prepares a source. Nothing is connected to before Run.
func NewSource(cfg SourceConfig, o Options) (*Source, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	o.Log = o.Log.Named("pulsar")
	s := &Source{cfg: cfg, o: o, seed: maphash.MakeSeed()}
	s.lagTrouble.report = func(err error) {
		if err != nil {
			s.o.Log.Warn("cannot tell the lag", zap.Error(err))
		}
	}
	return s, nil
}

// Lag is how many messages the subscription has not acknowledged, those in our lanes included; a batch counts as one. It asks the brokers' admin API,
// which needs admin_url, and is for all processes of the subscription together. While Run does not consume, and with any other error, it is -1. It is safe
// for concurrent use.
func (s *Source) Lag(ctx context.Context) (messages int64, err error) {
	consumer := s.consumer.Load()
	if consumer == nil {
		return -1, errNotRunning
	}
	messages, err = consumer.Backlog(ctx)
	if ctx.Err() == nil && !errors.Is(err, messaging.ErrNoAdminURL) && !errors.Is(err, messaging.ErrClosed) {
		// Routes show -1 and drop the reason: without this nobody would learn that admin_url is wrong.
		s.lagMu.Lock()
		s.lagTrouble.note(err)
		s.lagMu.Unlock()
	}
	if err != nil {
		return -1, err
	}
	return messages, nil
}

var errNotRunning = errors.New("the source does not run")

// Run consumes until ctx ends, then waits DrainTimeout for what the lanes hold and returns nil. Unreachable brokers, refused credentials and missing topics
// are reported and tried again for ever; an error is what cannot mend, such as a subscription that exists with another type.
func (s *Source) Run(ctx context.Context, lanes *lane.Set) error {
	if !s.running.TryLock() {
		return errors.New("the source is running already")
	}
	defer s.running.Unlock()
	client, err := messaging.Dial(context.WithoutCancel(ctx), s.cfg.Config, messaging.WithLogger(s.o.Log), messaging.WithRegisterer(s.o.Registerer))
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
		defer cancel()
		if err := client.Close(closing); err != nil {
			s.o.Log.Warn("cannot close the client", zap.Error(err))
		}
	}()
	consumer, err := client.Consumer(s.cfg.consumer())
	if err != nil {
		return err
	}
	s.consumer.Store(consumer)
	defer s.consumer.Store(nil)
	f := &feed{s: s, ctx: ctx, lanes: lanes, parts: make(map[string]*partition), shared: sharedLanes(s.cfg.Lanes)}
	ended := make(chan error, 1)
	go func() { ended <- consumer.RunAsync(ctx, f.handOver) }()

	tick := time.NewTicker(reportEvery)
	defer tick.Stop()
	trouble := reporter{report: s.o.Report}
	for {
		select {
		case err := <-ended: // it cannot go on, or ctx has ended
			f.close(s.o.Patience)
			return err
		case <-ctx.Done():
			f.close(s.o.Patience)
			return <-ended
		case <-tick.C:
			trouble.note(consumer.Trouble())
		}
	}
}

// reportEvery is how often trouble is looked for.
const reportEvery = time.Second

// reporter passes on what changes.
type reporter struct {
	report func(error)
	last   string
}

func (r *reporter) note(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	if text != r.last {
		r.last = text
		r.report(err)
	}
}

// feed is one Run.
type feed struct {
	s     *Source
	ctx   context.Context // Run's: offers end with it
	lanes *lane.Set

	mu     sync.RWMutex
	parts  map[string]*partition // by topic, or by number for shared subscriptions
	closed bool

	shared []string         // names of lanes
	names  map[string]place // of shared subscriptions, whose one worker uses it
	turn   int
}

// place is a partition's name, taken apart.
type place struct {
	topic string
	index int32 // -1 without partitions
}

func placeOf(topic string) place {
	if i := strings.LastIndex(topic, "-partition-"); i >= 0 {
		if n, err := strconv.ParseInt(topic[i+len("-partition-"):], 10, 32); err == nil {
			return place{topic[:i], int32(n)}
		}
	}
	return place{topic, -1}
}

// handOver takes one message from the consumer. For one partition it is called from one goroutine at a time.
func (f *feed) handOver(_ context.Context, d *messaging.Delivery, u messaging.PendingDelivery) {
	var p *partition
	var at place
	if f.s.cfg.partitioned() {
		if p = f.partition(d.Topic); p != nil {
			at = p.at
		}
	} else {
		at = f.place(d.Topic)
		p = f.partition(f.laneOf(d))
	}
	if p == nil {
		u.Complete(errStopping)
		return
	}
	p.take(f.ctx, f.message(d, at), d.ID, u)
}

// errStopping leaves a message to whoever subscribes next.
var errStopping = errors.New("stopping")

// laneOf chooses among the lanes of a shared subscription: one key's messages have one lane.
func (f *feed) laneOf(d *messaging.Delivery) string {
	n := f.turn
	if key := cmp.Or(d.OrderingKey, d.Key); key != "" {
		n = int(maphash.String(f.s.seed, key) % uint64(f.s.cfg.Lanes))
	} else {
		f.turn = (f.turn + 1) % f.s.cfg.Lanes
	}
	return f.shared[n]
}

// sharedLanes are the names of a shared subscription's lanes.
func sharedLanes(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = "lane-" + strconv.Itoa(i)
	}
	return names
}

// place is placeOf, remembered.
func (f *feed) place(topic string) place {
	at, ok := f.names[topic]
	if !ok {
		if f.names == nil || len(f.names) >= maxNames {
			f.names = make(map[string]place)
		}
		at = placeOf(topic)
		f.names[topic] = at
	}
	return at
}

const maxNames = 10_000

// message makes one of Pigeonhole's. The delivery is not used afterwards.
func (f *feed) message(d *messaging.Delivery, at place) *message.Message {
	m := message.FromPulsar(d.Key, d.Payload, d.Properties, d.EventTime)
	m.OrderingKey = d.OrderingKey
	m.From = message.From{
		System: system, Cluster: f.s.cfg.Cluster, Topic: at.topic, Partition: at.index, Offset: -1, Stored: d.PublishTime, Received: time.Now(),
	}
	id := ""
	if m.Begins() {
		id = d.ID.String()
	}
	m.Begin(id)
	return m
}

// partition returns what is consumed of a topic, opening its lane when needed; nil while stopping.
func (f *feed) partition(name string) *partition {
	f.mu.RLock()
	p := f.parts[name]
	closed := f.closed
	f.mu.RUnlock()
	if p != nil || closed {
		return p
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil
	}
	if p = f.parts[name]; p == nil {
		p = &partition{at: placeOf(name), ordered: f.s.cfg.partitioned()}
		p.lane = f.lanes.Open(fmt.Sprintf("%s/%s", f.s.cfg.Subscription, name), p.commit, lane.CommitEach(f.s.cfg.commitEach()))
		f.parts[name] = p
	}
	return p
}

// commitEach bounds how much of the prefetch waits for the commit interval.
func (c SourceConfig) commitEach() int { return max(c.PrefetchMessages/8, 1) }

// close drains every lane for DrainTimeout at most, and leaves the rest to whoever subscribes next.
func (f *feed) close(ctx context.Context) {
	f.mu.Lock()
	f.closed = true
	parts := f.parts
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, f.s.cfg.DrainTimeout)
	defer cancel()
	var wg sync.WaitGroup
	for name, p := range parts {
		wg.Go(func() {
			if err := p.lane.Close(ctx); err != nil {
				f.s.o.Log.Warn("stopped with messages under way, they will be delivered again", zap.String("lane", name), zap.Error(err))
			}
			p.leave()
		})
	}
	wg.Wait()
}
