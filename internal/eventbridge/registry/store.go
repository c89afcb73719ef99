package registry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Options are what a store can be told. The zero value works.
type Options struct {
	// Instance names this process in records. Optional.
	Instance string
	// Keys encrypt secrets. Default: they are stored as they are, readable for whoever reads the topic.
	Keys *Keys
	// Checks are asked about each object that is put.
	Checks Checks
	// Pulsar makes what buses and subscribers need there. Default: nothing is made.
	Pulsar Provisioner
	// Partitions says that buses may have more than one partition, which takes the admin API.
	Partitions bool
	// Log. Default: nowhere.
	Log *zap.Logger
	// Metrics of the registry. Default: not kept.
	Metrics *Metrics
	// Waiting is told by Open of each failure after which it tries again. May be nil.
	Waiting func(error)
}

// Provisioner makes at Pulsar what objects need, and removes it. Each method may be called again for what is done already.
type Provisioner interface {
	// MakeBus is called before a new bus is stored, MakeSubscriber before a new subscriber is: nothing can be published to, or
	// matched for, one that is not stored. The error may be an [*Invalid].
	MakeBus(ctx context.Context, b *Bus) error
	MakeSubscriber(ctx context.Context, b *Bus, s *Subscriber) error
	// CheckOrder is an [*Invalid] where the namespace cannot keep an order of subscribers.
	CheckOrder(ctx context.Context, o Order) error
	// RemoveBus is called after a bus was deleted and before a bus of the same name is made again, RemoveSubscriber after a
	// subscriber was deleted. The error is [ErrInUse] while somebody still uses what is to be removed.
	RemoveBus(ctx context.Context, bus string) error
	RemoveSubscriber(ctx context.Context, bus, name, uid string) error
}

// Store holds the registry: it reads the topic, and changes it. All methods are safe for concurrent use.
type Store struct {
	client *messaging.Client
	topic  string
	opts   Options
	log    *zap.Logger
	reader *messaging.Reader

	snapshot atomic.Pointer[Snapshot]
	watchers watchers

	mu       sync.Mutex
	contents *contents
	expected map[string]chan struct{} // closed once the reader has the change of that name

	owning  owning
	tidyNow chan struct{}

	life    context.Context // ends when Close begins
	end     context.CancelCauseFunc
	running sync.WaitGroup
}

// Open reads the registry to its end, and tries to until ctx ends. The topic is made where there is none. Run keeps it up to
// date from then on. Close the store when done.
func Open(ctx context.Context, client *messaging.Client, topics Topics, opts Options) (*Store, error) {
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	s := &Store{
		client: client, topic: topics.Registry(), opts: opts, log: opts.Log.Named("registry"),
		expected: make(map[string]chan struct{}), tidyNow: make(chan struct{}, 1),
	}
	s.owning.turn = make(chan struct{}, 1)
	s.contents = newContents(opts.Keys, s.log)
	s.life, s.end = context.WithCancelCause(context.Background())
	begin := time.Now()
	if err := s.load(ctx); err != nil {
		s.end(ErrClosed)
		return nil, fmt.Errorf("cannot read the registry %s: %w", s.topic, err)
	}
	s.mu.Lock()
	now := s.contents.share()
	s.mu.Unlock()
	s.show(now)
	buses, subscribers := now.Counts()
	s.log.Info("the registry is read", zap.Int64("revision", now.Revision()), zap.Int("buses", buses), zap.Int("subscribers", subscribers),
		zap.Int("rules", now.Rules()), zap.Int("unreadable", len(now.unreadable)), zap.Duration("took", time.Since(begin)))
	return s, nil
}

// readerBytes is how much of the topic is read ahead, with messages of the size readerMessage: 64 of them. The largest have eight times
// as much.
const (
	readerBytes   = 8 << 20
	readerMessage = 128 << 10
)

// load makes the topic where there is none, and reads it to its end.
func (s *Store) load(ctx context.Context) error {
	if err := s.makeTopic(ctx); err != nil {
		return err
	}
	r, err := s.client.Reader(ctx, messaging.ReaderConfig{
		Topic: s.topic, Name: "registry", ReadCompacted: true, PrefetchBytes: readerBytes, MaxMessageBytes: readerMessage,
	})
	if err != nil {
		return err
	}
	_, err = r.ReadToEnd(ctx, func(_ context.Context, d *messaging.Delivery) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.contents.apply(d)
		return nil
	})
	if err != nil {
		_ = r.Close(context.WithoutCancel(ctx)) //nolint:contextcheck // ctx may have ended
		return err
	}
	s.reader = r
	return nil
}

// keepSubscription is what keeps the topic's messages, which a broker deletes when no subscription waits for them. Nobody
// consumes it. Once the topic was compacted it only keeps what came later.
const keepSubscription = "keep"

// makeTopic makes the topic and the subscription that keeps it, trying until ctx ends.
func (s *Store) makeTopic(ctx context.Context) error {
	return insist(ctx, s.log, "make the registry's topic", s.opts.Waiting, func() error {
		err := s.client.Topic(s.topic).Create(ctx, 0)
		if err != nil && !errors.Is(err, messaging.ErrNoAdminURL) && !errors.Is(err, messaging.ErrExists) && !errors.Is(err, messaging.ErrAuthorization) {
			return err
		}
		parts, err := s.client.Partitions(ctx, s.topic)
		if err != nil {
			return err
		}
		if len(parts) > 1 {
			return fmt.Errorf("%w: it has %d partitions and must have none, or one", errFinal, len(parts))
		}
		return s.client.EnsureSubscription(ctx, s.topic, keepSubscription, messaging.StartEarliest)
	})
}

// Run takes changes over as they come, until ctx ends. It also removes what deleted objects leave at Pulsar, and has the
// topic compacted. An error is final: the broker will never let the store read on.
func (s *Store) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(ErrClosed) })()
	var tidying sync.WaitGroup
	tidying.Go(func() { s.tidy(ctx) })
	defer tidying.Wait()
	for {
		d, err := s.reader.Next(ctx)
		if err != nil {
			cancel(nil)
			if ctx.Err() != nil || errors.Is(err, messaging.ErrClosed) {
				return ctx.Err()
			}
			return fmt.Errorf("cannot read the registry: %w", err)
		}
		s.take(d)
	}
}

// take takes one message over.
func (s *Store) take(d *messaging.Delivery) {
	s.mu.Lock()
	change, changed := s.contents.apply(d)
	now := s.contents.snapshot
	s.mu.Unlock()
	if changed {
		s.show(now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if seen := s.expected[change]; seen != nil {
		delete(s.expected, change)
		close(seen)
	}
}

// show makes a snapshot the present one.
func (s *Store) show(now *Snapshot) {
	s.snapshot.Store(now)
	s.opts.Metrics.show(now)
	s.watchers.notify()
}

// Snapshot is the registry as this instance has it now. It may be some milliseconds behind; what this store changed before is in it.
func (s *Store) Snapshot() *Snapshot { return s.snapshot.Load() }

// Check says why the registry is not being read at present, nil when it is. It is a readiness check.
func (s *Store) Check(context.Context) error { return s.reader.Trouble() }

// Close ends the store: Run returns, changes fail with [ErrClosed], and watchers are called no more. It waits for them until
// ctx ends.
func (s *Store) Close(ctx context.Context) error {
	s.end(ErrClosed)
	s.watchers.close()
	err := s.reader.Close(ctx)
	s.owning.closeIfIdle(s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.running.Wait()
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
		return errors.Join(err, ctx.Err())
	}
}
