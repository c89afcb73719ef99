package outbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Shipper publishes the effects of a zone with one Redis to the zone's topic. Of several shippers of a
// zone, in one process or in many, only the one that owns the topic works. The others wait. All
// methods are safe for concurrent use.
type Shipper struct {
	*publisher
	redis    *redis.Client
	library  *redislib.Library
	onStored func(id wire.ID) // called with the last effect that the topic has
}

// New returns a shipper. It calls stored with the id of the last effect in the topic whenever that
// changes, in order.
func New(cfg Config, db *redis.Client, l *redislib.Library, client *messaging.Client, log *zap.Logger, m *Metrics, stored func(wire.ID)) *Shipper {
	return &Shipper{publisher: newPublisher(cfg, client, log, m), redis: db, library: l, onStored: stored}
}

// Run ships until ctx ends. It retries after failures of the network, Redis and Pulsar. It returns
// an error only if trying again does not help.
func (s *Shipper) Run(ctx context.Context) error { return s.run(ctx, s.ship) }

// followEvery is how often this process asks how far another one has shipped. It delays replies
// that wait for that by up to the same time.
const followEvery = 2 * time.Millisecond

// Follow reports the last effect in the topic while another process ships, until ctx ends.
func (s *Shipper) Follow(ctx context.Context) error {
	var reported wire.ID
	for backoff.Sleep(ctx, followEvery) {
		if s.Status().Owner {
			continue
		}
		// The process that ships logs errors of Redis.
		if id, err := s.library.ShippedTo(ctx); err == nil && id.Compare(reported) > 0 {
			reported = id
			s.onStored(id)
		}
	}
	return nil
}

// ship ships until ctx ends or the topic is lost. After a failure of a session it begins another one.
func (s *Shipper) ship(ctx context.Context, w *topicWriter) error {
	o := &owner{Shipper: s, topicWriter: w, single: true}
	return retry(ctx, o.session, func(err error) bool {
		var lost *writerError
		return final(err) || errors.As(err, &lost)
	}, s.health.Set)
}

// owner ships with one writer, over one or more sessions.
type owner struct {
	*Shipper
	*topicWriter
	prepared bool // a session has prepared Redis; before, the tail is as new as the writer
	// single says that the next message must be a single entry or transaction. This holds for the
	// first message of a writer. A message of the previous owner may be stored after this writer
	// has read the end of the topic. The broker then drops this first message as a duplicate,
	// because of its position. So it must not hold more than the previous owner's message.
	single bool
}

// session prepares Redis, and then ships until an error.
func (o *owner) session(ctx context.Context) error {
	if !o.prepared {
		if err := o.updateLibrary(ctx); err != nil {
			return err
		}
	}
	if err := o.prepare(ctx); err != nil {
		return err
	}
	o.health.Set(nil)
	o.reportStored()
	begin, q, stored := o.packer.Tail.Last, newQueue(), make(chan struct{}, 1)
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return o.read(running, begin, q) })
	group.Go(func() error { return o.store(running, q, stored) })
	group.Go(func() error { return o.trim(running, stored) })
	group.Go(func() error { return o.heartbeat(running) })
	group.Go(func() error { return o.resend(running) })
	group.Go(func() error { return o.prune(running) })
	return group.Wait()
}

// reportStored records and reports the last effect in the topic.
func (o *owner) reportStored() {
	o.recordStored(o.packer.Tail)
	o.onStored(o.packer.Tail.Last)
}

// store stores the effects of q, one message after the other, and signals each to stored. While it
// stores a message, effects of the next one gather in q. After the end of ctx it stores the rest.
func (o *owner) store(ctx context.Context, q *queue, stored chan struct{}) error {
	for {
		entries, err := q.take(ctx, o.single)
		if err != nil {
			return nil //nolint:nilerr // another goroutine of the session returns the error
		}
		if err := o.storeOne(entries); err != nil {
			return err
		}
		o.reportStored()
		signal(stored)
	}
}

// storeOne stores the entries of one message.
func (o *owner) storeOne(entries []wire.Entry) error {
	messages, ends, err := o.packer.Pack(entries)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrState, err)
	}
	if err := o.storeMessages(messages, ends); err != nil {
		return err
	}
	o.single = false
	return nil
}

// trim removes from the outbox what the topic has. It works concurrently with store: only the latest
// id counts.
func (o *owner) trim(ctx context.Context, stored <-chan struct{}) error {
	for {
		select {
		case <-stored:
		case <-ctx.Done():
			return nil
		}
		if err := o.library.Shipped(ctx, o.Status().Stored); err != nil {
			return fmt.Errorf("cannot trim the outbox: %w", err)
		}
	}
}

// beatEvery is how often this zone sends a heartbeat to the other zones.
const beatEvery = time.Second

// heartbeat sends heartbeats to the other zones. It also detects a restart of Redis: the heartbeat
// fails because Redis is not ready, and the next session opens it again.
func (o *owner) heartbeat(ctx context.Context) error {
	for backoff.Sleep(ctx, beatEvery) {
		if err := o.library.SendHeartbeat(ctx); err != nil {
			return fmt.Errorf("cannot send a heartbeat: %w", err)
		}
	}
	return nil
}

// resend ships the state of resendCount noted keys, elements and counters at a time, and waits
// until it is stored before the next.
const (
	resendCount = 256
	resendPause = 5 * time.Millisecond
	resendIdle  = 200 * time.Millisecond
)

// resend ships the state of everything that dropped effects changed.
func (o *owner) resend(ctx context.Context) error {
	var last wire.ID // the effect of the last Resend
	pause := resendIdle
	for backoff.Sleep(ctx, pause) {
		if o.Status().Stored.Compare(last) < 0 {
			continue
		}
		id, left, err := o.library.Resend(ctx, resendCount)
		if err != nil && !redislib.NotReady(err) {
			return fmt.Errorf("cannot ship the state of keys whose effects were dropped: %w", err)
		}
		switch {
		case !id.IsZero() && pause == resendIdle:
			o.log.Info("shipping the state of the data that changed while effects were dropped", zap.Int64("left", left))
			pause = resendPause
		case id.IsZero() && pause == resendPause:
			o.log.Info("stopped shipping state: everything is shipped, or effects are dropped again", zap.Int64("left", left))
			pause = resendIdle
		}
		last = wire.Max(last, id)
	}
	return nil
}

// prune scans the versions in steps of pruneCount with a pause of pruneStep, so that Redis can
// serve clients in between. It begins a new round at most once per pruneRound.
const (
	pruneCount = 500
	pruneStep  = 10 * time.Millisecond
	pruneRound = time.Second
)

// prune removes versions that no zone needs any more.
func (o *owner) prune(ctx context.Context) error {
	cursor := "0"
	for {
		next, left, err := o.library.Prune(ctx, cursor, pruneCount)
		if err != nil {
			return fmt.Errorf("cannot prune versions: %w", err)
		}
		pause := pruneStep
		if cursor = next; cursor == "0" {
			pause = pruneRound
			o.log.Debug("checked all versions for pruning", zap.Int64("left", left))
		}
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
	}
}
