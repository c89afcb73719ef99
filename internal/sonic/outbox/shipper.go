// Package outbox publishes the effects of the zone's Redis to the zone's topic. It reads the stream
// of effects, packs them into messages, stores these in the stream's order, and then trims the
// stream.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config says which effects to ship, and to which topic.
type Config struct {
	Zone  string
	Topic string // of the zone
	// Alone says that there is no other zone, so that no other Redis can differ from this one.
	Alone bool
	// Config describes the settings that must be equal in all zones. Each message carries it: see
	// [wire.Config].
	Config string
}

// Shipper publishes the effects of a zone with one Redis to the zone's topic. Of several shippers of a
// zone, in one process or in many, only the one that owns the topic works. The others wait. All
// methods are safe for concurrent use.
type Shipper struct {
	cfg      Config
	redis    *redis.Client
	library  *redislib.Library
	client   *messaging.Client
	log      *zap.Logger
	metrics  *Metrics
	health   *health.State
	onStored func(id wire.ID) // called with the last effect that the topic has

	mu     sync.Mutex
	status Status
}

// Status is the state of a shipper.
type Status struct {
	// Owner says that this process owns the topic and ships. If false, another process owns it, or
	// opening it fails.
	Owner bool
	// Stored is the last effect that is known to be stored in the topic.
	Stored wire.ID
	Epoch  int64
}

// New returns a shipper. It calls stored with the id of the last effect in the topic whenever that
// changes, in order.
func New(cfg Config, db *redis.Client, l *redislib.Library, client *messaging.Client, log *zap.Logger, m *Metrics, stored func(wire.ID)) *Shipper {
	log = log.Named("outbox")
	return &Shipper{cfg: cfg, redis: db, library: l, client: client, log: log, metrics: m, health: health.New(log), onStored: stored}
}

// Status returns the state of the shipper.
func (s *Shipper) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.status
}

// Unhealthy returns why this process ships nothing at present. It is nil if it ships, or if another
// process does.
func (s *Shipper) Unhealthy() error { return s.health.Current() }

// Run ships until ctx ends. It retries after failures of the network, Redis and Pulsar. It returns
// an error only if trying again does not help.
func (s *Shipper) Run(ctx context.Context) error { return runShipper(ctx, s.health, s.shipWhileOwner) }

// runShipper calls ship again after each error, until ctx ends or trying again does not help. state
// gets the errors.
func runShipper(ctx context.Context, state *health.State, ship func(context.Context) error) error {
	var pause backoff.Backoff
	for ctx.Err() == nil {
		began := time.Now()
		err := ship(ctx)
		switch {
		case ctx.Err() != nil: // the error comes from the end of ctx
		case final(err):
			return err
		default:
			state.Set(err)
			pause.Held(time.Since(began))
			pause.Wait(ctx)
		}
	}
	return nil
}

// shipWhileOwner waits until this process owns the topic, and ships as long as it does.
func (s *Shipper) shipWhileOwner(ctx context.Context) error {
	w, err := s.acquireTopic(ctx)
	if err != nil {
		return err
	}
	defer s.releaseTopic(w)
	return s.ship(ctx, w)
}

// final reports whether trying again does not help.
func final(err error) bool {
	return errors.Is(err, messaging.ErrTopicTerminated) || errors.Is(err, messaging.ErrInvalidTopic) || errors.Is(err, ErrState)
}

// ErrState says that Sonic cannot continue with the state of this Redis, topic or outbox.
var ErrState = errors.New("this Redis cannot be used")

// acquireTopic waits until this process is the only one that may write to the topic.
func (s *Shipper) acquireTopic(ctx context.Context) (*messaging.EntryWriter, error) {
	return s.end().acquire(ctx)
}

func (s *Shipper) releaseTopic(w *messaging.EntryWriter) {
	s.mu.Lock()
	s.status.Owner = false
	s.mu.Unlock()
	s.end().release(w)
}

// end is the topic that the shipper writes to.
func (s *Shipper) end() topicEnd {
	return topicEnd{zone: s.cfg.Zone, topic: s.cfg.Topic, client: s.client, log: s.log}
}

// ship ships until ctx or the ownership of the topic ends. After a failure of a session it starts
// another one.
func (s *Shipper) ship(ctx context.Context, w *messaging.EntryWriter) error {
	t, err := s.tail(ctx, w.Last())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.status.Owner = true
	s.mu.Unlock()
	s.log.Info("took over the topic", zap.String("topic", w.Topic()), zap.Stringer("stored", t.Last))
	ctx, storing, done := whileOwner(ctx, w)
	defer done()

	l := &loader{Shipper: s, writer: w, storeContext: storing, packer: wire.Packer{Origin: s.cfg.Zone, Config: s.cfg.Config, Tail: t}, firstSession: true, single: true}
	var pause backoff.Backoff
	for {
		began := time.Now()
		err := l.session(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var lost *writerError
		if final(err) || errors.As(err, &lost) {
			return err
		}
		s.health.Set(err)
		pause.Held(time.Since(began))
		pause.Wait(ctx)
	}
}

// loader ships with one writer, over one or more sessions.
type loader struct {
	*Shipper
	writer       *messaging.EntryWriter
	storeContext context.Context
	packer       wire.Packer // its Tail is the stored end of the topic
	firstSession bool        // the tail was read when the writer was opened, and no session has used it yet
	// single says that the next message must be a single entry or transaction. This holds for the
	// first message of a writer. A message of the previous owner may be stored after this writer
	// has read the end of the topic. The broker then drops this first message as a duplicate,
	// because of its position. So it must not hold more than the previous owner's message.
	single bool
}

// session prepares Redis, and then ships until an error.
func (l *loader) session(ctx context.Context) error {
	if l.firstSession {
		if err := l.updateLibrary(ctx); err != nil {
			return err
		}
	}
	begin, err := l.prepare(ctx)
	if err != nil {
		return err
	}
	l.health.Set(nil)
	l.recordStored(begin)
	q := newQueue()
	trim := newTrimmer(l.library)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return l.read(running, begin, q) })
	group.Go(func() error { return l.resend(running) })
	group.Go(func() error { return l.store(running, q, trim) })
	group.Go(func() error { return trim.run(running) })
	group.Go(func() error { return l.heartbeat(running) })
	group.Go(func() error { return l.prune(running) })
	return group.Wait()
}

// recordStored records the last effect in the topic, and reports it.
func (s *Shipper) recordStored(id wire.ID) {
	s.mu.Lock()
	s.status.Stored = id
	s.mu.Unlock()
	s.onStored(id)
}

// store stores the effects of q, one message after the other. While it stores a message, effects of
// the next one gather in q. After the end of ctx it stores the rest.
func (l *loader) store(ctx context.Context, q *queue, trim *trimmer) error {
	for {
		entries, err := q.take(ctx, l.single)
		if err != nil {
			return nil //nolint:nilerr // another goroutine of the session returns the error
		}
		if err := l.storeOne(entries); err != nil {
			return err
		}
		trim.trimTo(l.packer.Tail.Last)
	}
}

// storeOne stores the entries of one message.
func (l *loader) storeOne(entries []wire.Entry) error {
	records, ends, err := l.pack(entries)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, r := range records {
		if err := l.writer.Store(l.storeContext, r); err != nil {
			return &writerError{fmt.Errorf("cannot store effects: %w", err)}
		}
	}
	l.metrics.stored(entries, records, time.Since(began))
	l.packer.Tail, l.single = ends, false
	l.recordStored(ends.Last)
	return nil
}

// beatEvery is how often this zone sends a heartbeat to the other zones.
const beatEvery = time.Second

// heartbeat sends heartbeats to the other zones. It also detects a restart of Redis: the heartbeat
// fails because Redis is not ready, and the next session opens it again.
func (l *loader) heartbeat(ctx context.Context) error {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if err := l.library.SendHeartbeat(ctx); err != nil {
			return fmt.Errorf("cannot send a heartbeat: %w", err)
		}
	}
}

func (s *Shipper) setEpoch(epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Epoch = epoch
}
