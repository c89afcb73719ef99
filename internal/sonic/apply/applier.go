// Package apply applies another zone's effects to this zone's Redis. It consumes that zone's topic,
// one message at a time, and passes each message to the library of Redis functions. The library
// skips effects that it has already applied, and applies the rest in one step. The package may
// import topic, primaries, redislib and the packages that these import.
package apply

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config says what to apply.
type Config struct {
	Zone   string // this zone
	Origin string // the other zone
	Topic  string // of the other zone
	// MaxClockSkew is how far the other zone's clock may be ahead before the applier logs a
	// warning.
	MaxClockSkew time.Duration
	// Settings describes the settings that must be equal in all zones, see [wire.Config].
	Settings string
}

// Applier applies one zone's effects. Of several appliers for the same zone, in one process or in
// many, only one works at a time: the one to which the broker delivers the topic. All methods are
// safe for concurrent use.
type Applier struct {
	*progress
	library *redislib.Library
	slots   slotState // of an origin with a Redis Cluster; only the consumer's handler uses it
}

// New makes an applier.
func New(cfg Config, l *redislib.Library, client *messaging.Client, log *zap.Logger, m *Metrics) *Applier {
	return &Applier{library: l, progress: newProgress(cfg, client, log, m, func(ctx context.Context, _ *messaging.Delivery, h *wire.Header) (bool, error) {
		state, err := l.ReadState(ctx)
		return !h.Last.IsZero() && state.Cursors[cfg.Origin].ID.Compare(h.Last) >= 0, err
	})}
}

// Run applies effects until ctx ends. It retries after failures of the network, Redis and Pulsar.
// At a message that cannot be applied it waits until the message can be, or is skipped. It returns
// an error only for a wrong configuration.
func (a *Applier) Run(ctx context.Context) error { return a.run(ctx, a.apply, a.watch) }

// apply tries to apply a message once.
func (a *Applier) apply(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
	return a.applyInOrder(ctx, d, h, a.handler(&a.slots), a.catchUp)
}

// handler returns a handler that applies a message, of an origin of either kind.
func (a *Applier) handler(slots *slotState) handler {
	return func(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
		if h.Slots {
			return a.applySlots(ctx, d, h, slots)
		}
		result, err := a.library.Apply(ctx, h, d.Payload, string(d.ID.Bytes()))
		switch {
		case redislib.Rejected(err):
			return cannotApply(d, h, err)
		case err != nil:
			return err
		case result.Status == redislib.Gap:
			return &gapError{result.Cursor}
		}
		a.metrics.countOutcomes(a.cfg.Origin, result)
		if result.Status == redislib.Applied || !slots.again {
			a.recordApplied(d, h)
		}
		return nil
	}
}

// catchUp applies the messages between the cursor and d. They are missing if this Redis came back with
// older data: the subscription is already past them.
func (a *Applier) catchUp(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
	state, err := a.library.ReadState(ctx)
	if err != nil {
		return err
	}
	slots := slotState{epoch: state.Epoch, again: true}
	apply := a.inOrder(a.handler(&slots))
	if err := a.readAgain(ctx, state.Cursors[a.cfg.Origin].Message, d, func(ctx context.Context, missing *messaging.Delivery, header *wire.Header) error {
		if header.Slots != h.Slots {
			return errMixed
		}
		return apply(ctx, missing, header)
	}); err != nil {
		return err
	}
	slots.again = false
	a.slots = slots
	return nil
}

// errMixed says that a zone has had one Redis before, and messages of that time are behind the
// cursor.
var errMixed = errors.New("the topic has messages of one Redis and of a Redis Cluster: use a new topic for the Redis Cluster")

// watchEvery is how often watch reads the end of the topic.
const watchEvery = 5 * time.Second

// watch finds out how many effects the topic has, and how far the zone is if another process
// applies. It also finds a Redis that came back with older data while the other zone sends nothing.
// Then no message arrives that would show the missing effects, for the subscription has already
// delivered all of them. subscribing returns why there is no subscription.
func (a *Applier) watch(ctx context.Context, subscribing func() error) {
	var before wire.ID // the cursor at the last check
	behind := false    // whether that cursor was before the end of the topic
	failed := false    // whether reading the topic again has failed
	for backoff.Sleep(ctx, watchEvery) {
		end, err := a.readEnd(ctx)
		if ctx.Err() != nil {
			return
		}
		state, lookErr := a.library.ReadState(ctx)
		cursor := state.Cursors[a.cfg.Origin]
		if lookErr == nil {
			a.updateCursor(cursor.ID)
		}
		a.recordTopicError(subscribing(), err)
		if lookErr != nil || !state.Opened || end == nil {
			continue // the shipper logs the error
		}
		switch {
		case cursor.ID.Compare(reachedBy(end)) >= 0:
			behind = false
		case !behind || cursor.ID.Compare(before) != 0: // the missing messages may still be on their way
			behind, before = true, cursor.ID
		case a.health.Current() == nil || a.Status().Gap || failed: // otherwise handle is trying already
			err := a.applyFromCursor(ctx, state.Epoch, cursor)
			failed = err != nil
			if ctx.Err() == nil {
				a.health.Set(err)
			}
		}
	}
}

// applyFromCursor reads the topic from the cursor on and applies it. The consumer may apply the
// same messages at the same time: the library applies each effect once. epoch is that of this Redis
// with that cursor.
func (a *Applier) applyFromCursor(ctx context.Context, epoch int64, at redislib.Cursor) error {
	a.log.Info("this Redis lacks effects that were applied before, reading the topic again", zap.Stringer("cursor", at.ID))
	return a.readAgain(ctx, at.Message, nil, a.inOrder(a.handler(&slotState{epoch: epoch, again: true})))
}

// reachEvery is how often the cursor of an origin with a Redis Cluster is moved, and how often this
// zone's primaries are marked if it has a Redis Cluster.
const reachEvery = time.Second

// slotState is the state of applying the messages of an origin that has a Redis Cluster.
type slotState struct {
	parts wire.PartJoiner
	// epoch is that of this Redis when the cursor was read. All messages behind the cursor are applied
	// since. 0: some may be missing.
	epoch   int64
	reached time.Time // when the cursor was moved
	again   bool      // the messages are read again
}

// applySlots applies a message with the effects of slots. Each slot has a chain of its own, so a
// message does not show whether all before it are applied: this Redis may have come back without
// effects of slots that this message does not have. So the cursor is moved only if Redis was not
// opened again since the messages behind the cursor were applied.
func (a *Applier) applySlots(ctx context.Context, d *messaging.Delivery, h *wire.Header, slots *slotState) error {
	if slots.epoch == 0 && !slots.again {
		return errUnknown
	}
	payload, whole, err := slots.parts.Add(h, d.Payload)
	if err != nil || !whole {
		return partsError(d, h, err)
	}
	groups, err := wire.Groups(payload)
	if err != nil {
		return cannotApply(d, h, err)
	}
	results, err := a.library.ApplyGroups(ctx, h, groups, string(d.ID.Bytes()))
	if err == nil {
		err = a.countSlots(results)
	}
	if redislib.Rejected(err) {
		return cannotApply(d, h, err)
	}
	if err != nil {
		return err
	}
	if len(groups) == 0 || time.Since(slots.reached) >= reachEvery {
		if err := a.library.Reached(ctx, a.cfg.Origin, slots.epoch, reachedBy(h), string(d.ID.Bytes()), h.ReachedIDs()); err != nil {
			if redislib.Older(err) {
				slots.epoch = 0
			}
			return err
		}
		slots.reached = time.Now()
	}
	a.recordApplied(d, h)
	return nil
}

// partsError returns the error of joining the parts of a message.
func partsError(d *messaging.Delivery, h *wire.Header, err error) error {
	if err != nil && !errors.Is(err, wire.ErrPartsMissing) {
		return cannotApply(d, h, err)
	}
	return err
}
