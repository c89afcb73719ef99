// Package store stores buses, subscribers and rules in one compacted topic, which all instances
// read and change. Of Eventbridge, it imports only registry/model.
package store

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Options are the options of a store. The zero value works.
type Options struct {
	// Instance names this process in records. Optional.
	Instance string
	// Keys encrypt secrets. Default: secrets are stored as plain text, and everyone who can read
	// the topic can read them.
	Keys *Keys
	// Checks are additional checks of each object that is put.
	Checks model.Checks
	// Pulsar creates the topics and subscriptions that buses and subscribers need. Default: the
	// store creates none.
	Pulsar Provisioner
	// Partitions says that a bus may have more than one partition. That needs the admin API.
	Partitions bool
	// Log. Default: nothing is logged.
	Log *zap.Logger
	// Metrics of the registry. Default: not exported.
	Metrics *Metrics
	// Open calls Waiting after each failed attempt, before it tries again. May be nil.
	Waiting func(error)
}

// Provisioner creates and removes the topics and subscriptions of buses and subscribers at Pulsar.
// All its methods are idempotent.
type Provisioner interface {
	// The store calls MakeBus before it stores a new bus, and MakeSubscriber before it stores a new
	// subscriber. No instance publishes to a bus, or matches events for a subscriber, that is not
	// stored. The error may be an [*model.Invalid].
	MakeBus(ctx context.Context, b *model.Bus) error
	MakeSubscriber(ctx context.Context, b *model.Bus, s *model.Subscriber) error
	// CheckOrder returns an [*model.Invalid] if the namespace cannot keep the order o.
	CheckOrder(ctx context.Context, o model.Order) error
	// The store calls RemoveBus after a bus was deleted, and before a bus of the same name is made
	// again. It calls RemoveSubscriber after a subscriber was deleted. The error is
	// [model.ErrInUse] while a topic to be removed still has clients.
	RemoveBus(ctx context.Context, bus string) error
	RemoveSubscriber(ctx context.Context, bus, name, uid string) error
}

// Store reads the registry's topic, and writes changes to it. All methods are safe for concurrent
// use.
type Store struct {
	client *messaging.Client
	topic  string
	opts   Options
	log    *zap.Logger
	reader *messaging.Reader

	snapshot atomic.Pointer[Snapshot]

	mu       sync.Mutex
	contents *contents
	next     chan struct{}            // closed when there is another snapshot
	expected map[string]chan struct{} // by the ID of a change; closed once the reader has read that change

	turn       chan struct{}     // holds one element while a change of this store owns the topic, or tries to
	handOver   chan *writerLease // from a change that has ended to one that waits
	cleanUpNow chan struct{}

	life    context.Context // ends when Close begins
	end     context.CancelCauseFunc
	running sync.WaitGroup
}

// Open creates the registry's topic if there is none, and reads the topic to its end. It retries
// until ctx ends. Run keeps the store up to date from then on. Close the store when done.
func Open(ctx context.Context, client *messaging.Client, topics model.Topics, opts Options) (*Store, error) {
	if opts.Log == nil {
		opts.Log = zap.NewNop()
	}
	if opts.Metrics == nil {
		opts.Metrics = NewMetrics(nil)
	}
	s := &Store{
		client: client, topic: topics.Registry(), opts: opts, log: opts.Log.Named("registry"),
		next: make(chan struct{}), expected: make(map[string]chan struct{}),
		turn: make(chan struct{}, 1), handOver: make(chan *writerLease), cleanUpNow: make(chan struct{}, 1),
		contents: newContents(opts.Keys, opts.Log.Named("registry")),
	}
	s.life, s.end = context.WithCancelCause(context.Background())
	begin := time.Now()
	if err := s.load(ctx); err != nil {
		s.end(model.ErrClosed)
		return nil, fmt.Errorf("cannot read the registry %s: %w", s.topic, err)
	}
	s.mu.Lock()
	now := s.contents.share()
	s.show(now)
	s.mu.Unlock()
	buses, subscribers := now.Counts()
	s.log.Info("registry loaded", zap.Int64("revision", now.Revision()), zap.Int("buses", buses), zap.Int("subscribers", subscribers),
		zap.Int("rules", now.Rules()), zap.Int("unreadable", len(now.unreadable)), zap.Duration("took", time.Since(begin)))
	return s, nil
}

// readerBytes bounds what the reader reads ahead: 64 messages of readerMessage bytes. The largest
// messages have eight times as many bytes.
const (
	readerBytes   = 8 << 20
	readerMessage = 128 << 10
)

// load creates the topic if there is none, and reads it to its end.
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

// KeepSubscription is a subscription that nobody consumes. It makes the broker keep the topic's
// messages: a broker deletes messages that no subscription waits for. After a compaction it keeps
// only the messages that came later.
const KeepSubscription = "keep"

// makeTopic creates the topic and its KeepSubscription. It retries until ctx ends.
func (s *Store) makeTopic(ctx context.Context) error {
	return retryForever(ctx, s.log, "make the registry's topic", s.opts.Waiting, func() error {
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
		return s.client.EnsureSubscription(ctx, s.topic, KeepSubscription, messaging.StartEarliest)
	})
}

// Run applies changes as it reads them, until ctx ends. It also removes the topics of deleted
// objects at Pulsar, and has the broker compact the registry's topic. An error is final: the broker
// will never let the store read on.
func (s *Store) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(model.ErrClosed) })()
	var cleaning sync.WaitGroup
	cleaning.Go(func() { s.cleanUp(ctx) })
	defer cleaning.Wait()
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

// take applies one message.
func (s *Store) take(d *messaging.Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change, changed := s.contents.apply(d)
	if changed {
		s.show(s.contents.snapshot)
	}
	if seen := s.expected[change]; seen != nil {
		delete(s.expected, change)
		close(seen)
	}
}

// show makes a snapshot the current one. The caller holds the lock.
func (s *Store) show(now *Snapshot) {
	s.snapshot.Store(now)
	s.opts.Metrics.show(now)
	close(s.next)
	s.next = make(chan struct{})
}

// Snapshot is the registry as this instance has read it. It may be some milliseconds behind. It
// includes all changes that this store has made.
func (s *Store) Snapshot() *Snapshot { return s.snapshot.Load() }

// Check is a readiness check. It returns why the registry cannot be read at present, or nil.
func (s *Store) Check(context.Context) error { return s.reader.Unhealthy() }

// Close ends the store: Run returns, changes fail with [model.ErrClosed], and watchers are not
// called any more. Until ctx ends it waits for running calls of watchers and for work in the
// background.
func (s *Store) Close(ctx context.Context) error {
	s.end(model.ErrClosed)
	err := s.reader.Close(ctx)
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
