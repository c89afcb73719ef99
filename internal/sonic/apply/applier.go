// Package apply applies another zone's effects to this zone's Redis. It consumes that zone's topic,
// one message at a time, and passes each message to the library of Redis functions. The library
// skips what it has already applied, and applies the rest in one step.
package apply

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config says what to apply.
type Config struct {
	Zone   string // this zone
	Origin string // the other zone
	Shard  int    // of the topic
	Topic  string // of the other zone
	// MaxClockSkew is how far the other zone's clock may be ahead before the applier logs a
	// warning.
	MaxClockSkew time.Duration
	// Config describes the part of this zone's configuration that must be equal in all zones: see
	// [wire.Config].
	Config string
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
	return &Applier{progress: newProgress(cfg, client, log, m), library: l}
}

// Run applies effects until ctx ends. It retries after failures of the network, Redis and Pulsar.
// At a message that cannot be applied it waits until the message can be, or is skipped. It returns
// an error only for a wrong configuration.
func (a *Applier) Run(ctx context.Context) error { return a.run(ctx, a.apply, a.watch) }

// apply tries to apply a message once.
func (a *Applier) apply(ctx context.Context, d *messaging.Delivery) error {
	h, err := a.readHeader(ctx, d)
	if h == nil {
		return err
	}
	if h.Slots {
		return a.applySlots(ctx, d, h)
	}
	result, err := a.call(ctx, d, h)
	if err != nil {
		return err
	}
	if result.Status == redislib.Gap {
		if err := a.fillGap(ctx, d, h, result); err != nil {
			return err
		}
		if result, err = a.call(ctx, d, h); err != nil {
			return err
		}
		if result.Status == redislib.Gap {
			return a.reportGap(h, result.Cursor)
		}
	}
	a.recordApplied(d, h)
	return nil
}

// readHeader is header, which asks Redis what this zone has passed.
func (a *Applier) readHeader(ctx context.Context, d *messaging.Delivery) (*wire.Header, error) {
	return a.header(d, func(h *wire.Header) (bool, error) {
		state, err := a.library.ReadState(ctx)
		return !h.Last.IsZero() && state.Cursors[a.cfg.Origin].ID.Compare(h.Last) >= 0, err
	})
}

// call passes a message to the library.
func (a *Applier) call(ctx context.Context, d *messaging.Delivery, h *wire.Header) (redislib.Result, error) {
	if h.Slots {
		return redislib.Result{}, errMixed
	}
	result, err := a.library.Apply(ctx, h, d.Payload, string(d.ID.Bytes()))
	if err != nil {
		if redislib.Refused(err) {
			err = cannotApply(d, h, err)
		}
		return result, err
	}
	a.metrics.countOutcomes(a.cfg.Origin, result)
	return result, nil
}

// fillGap applies the effects that are missing before h. They are missing because this Redis came
// back with older data: the subscription is already past them.
func (a *Applier) fillGap(ctx context.Context, d *messaging.Delivery, h *wire.Header, at redislib.Result) error {
	a.logGap(h, at.Cursor)
	return a.readAgain(ctx, d, at.CursorMessage, func(ctx context.Context, missing *messaging.Delivery) error {
		_, _, err := a.applyAgain(ctx, missing)
		return err
	})
}

// applyAgain applies a message that is read again, unless it is to be skipped. It returns the error
// of reportGap if effects are missing before it.
func (a *Applier) applyAgain(ctx context.Context, d *messaging.Delivery) (*wire.Header, redislib.Result, error) {
	h, err := a.readHeader(ctx, d)
	if h == nil {
		return nil, redislib.Result{}, err
	}
	result, err := a.call(ctx, d, h)
	if err == nil && result.Status == redislib.Gap {
		err = a.reportGap(h, result.Cursor)
	}
	return h, result, err
}

// watchEvery is how often watch reads the end of the topic.
const watchEvery = 5 * time.Second

// watch finds out how many effects the topic has, and how far the zone is if another process
// applies. It also finds a Redis that came back with older data while the other zone sends nothing.
// Then no message arrives that would show the missing effects, for the subscription has already
// delivered all of them. subscribing returns why there is no subscription.
func (a *Applier) watch(ctx context.Context, subscribing func() error) {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	var before wire.ID // the cursor at the last check
	behind := false    // whether that cursor was before the end of the topic
	failed := false    // whether reading the topic again has failed
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
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
	slots := slotState{epoch: epoch}
	return a.readToEnd(ctx, at.Message, func(ctx context.Context, d *messaging.Delivery) error {
		if h, err := a.readHeader(ctx, d); h == nil {
			return err
		} else if h.Slots {
			return a.applySlotsAgain(ctx, d, h, &slots, true)
		}
		h, result, err := a.applyAgain(ctx, d)
		if err == nil && result.Status == redislib.Applied {
			a.recordApplied(d, h)
		}
		return err
	})
}
