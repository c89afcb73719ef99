package apply

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// handler handles a message of the other zone's topic, which has the header h.
type handler func(ctx context.Context, d *messaging.Delivery, h *wire.Header) error

// passedFunc reports whether this zone has applied, or skipped, a message with an unreadable header.
type passedFunc func(ctx context.Context, d *messaging.Delivery, h *wire.Header) (bool, error)

// run consumes the topic until ctx ends, with watch beside it. subscribing returns why there is no
// subscription.
func (p *progress) run(ctx context.Context, apply handler, watch func(ctx context.Context, subscribing func() error)) error {
	ctx, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer stop()
	consumer, err := p.client.Consumer(p.cfg.consumer())
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.status.Began = time.Now()
	p.mu.Unlock()
	watching.Go(func() { watch(ctx, consumer.Unhealthy) })
	return consumer.Run(ctx, func(handling context.Context, d *messaging.Delivery) error { return p.handle(handling, ctx, d, apply) })
}

// handle applies one message. It returns nil when this message and all before it are applied.
func (p *progress) handle(ctx, running context.Context, d *messaging.Delivery, apply handler) error {
	var pause backoff.Backoff
	for {
		err := p.withHeader(ctx, d, apply)
		p.health.Set(err)
		if err == nil || running.Err() != nil {
			return err // with an error the process stops; the message will be delivered again
		}
		pause.Wait(running)
	}
}

// withHeader passes a message with its header to f. It skips a message that the origin's Sonic has not
// written, and one that cannot be read and that this zone has passed.
func (p *progress) withHeader(ctx context.Context, d *messaging.Delivery, f handler) error {
	h, err := topic.Header(d, p.cfg.Origin)
	if err == nil {
		return f(ctx, d, h)
	}
	if errors.Is(err, wire.ErrForeign) {
		p.metrics.foreign.WithLabelValues(p.cfg.Origin).Inc()
		p.log.Error("skipped a foreign message", zap.Stringer("message", d.ID), zap.String("topic", d.Topic), zap.Error(err))
		return nil
	}
	if passed, passedErr := p.passed(ctx, d, h); passed || passedErr != nil {
		return passedErr
	}
	return cannotApply(d, h, err)
}

// readAgain passes the messages behind one to f, or all if after is empty, up to the end of the topic,
// or to the message before end.
func (p *progress) readAgain(ctx context.Context, after string, end *messaging.Delivery, f handler) error {
	cfg := messaging.ReaderConfig{Topic: p.cfg.Topic, Name: "sonic"}
	if id, err := messaging.ParseMessageID([]byte(after)); err == nil && !id.IsZero() {
		cfg.After = []messaging.MessageID{id}
	}
	r, err := p.client.Reader(ctx, cfg)
	if err != nil {
		return fmt.Errorf("cannot read the topic again: %w", err)
	}
	defer func() { _ = r.Close(context.WithoutCancel(ctx)) }()
	var failed error // of f
	_, err = r.ReadToEnd(ctx, func(ctx context.Context, d *messaging.Delivery) error {
		if end != nil && d.ID.Compare(end.ID) >= 0 {
			return errEnd
		}
		failed = p.withHeader(ctx, d, f)
		return failed
	})
	if err != nil && failed == nil && !errors.Is(err, errEnd) {
		return fmt.Errorf("cannot read the topic again: %w", err)
	}
	return failed
}

// errEnd ends readAgain.
var errEnd = errors.New("all messages are read")

// gapError says that effects are missing before a message. at is the last effect before them.
type gapError struct{ at wire.ID }

func (g *gapError) Error() string { return "effects are missing after " + g.at.String() }

// errUnknown says that it is not known whether something is missing before a message.
var errUnknown = errors.New("the last applied effect is unknown")

// applyInOrder applies a message by apply. If something before it is missing, or may be, it first
// calls catchUp, which applies all that is before the message.
func (p *progress) applyInOrder(ctx context.Context, d *messaging.Delivery, h *wire.Header, apply, catchUp handler) error {
	err := apply(ctx, d, h)
	var gap *gapError
	switch {
	case errors.As(err, &gap):
		p.logGap(h, gap.at)
	case !errors.Is(err, errUnknown) && !errors.Is(err, wire.ErrPartsMissing):
		return err
	}
	if err := catchUp(ctx, d, h); err != nil {
		return err
	}
	return p.inOrder(apply)(ctx, d, h)
}

// inOrder returns a handler for messages all before which are applied: what is missing before one
// is not in the topic any more.
func (p *progress) inOrder(apply handler) handler {
	return func(ctx context.Context, d *messaging.Delivery, h *wire.Header) error {
		err := apply(ctx, d, h)
		var gap *gapError
		switch {
		case errors.As(err, &gap):
			return p.reportGap(h, gap.at)
		case errors.Is(err, wire.ErrPartsMissing):
			return cannotApply(d, h, err)
		default:
			return err
		}
	}
}

// countSlots counts what became of effects. It returns a gapError if effects are missing.
func (p *progress) countSlots(results []redislib.Result) error {
	var gap *gapError
	for _, r := range results {
		if r.Status == redislib.Gap {
			if gap == nil || r.Cursor.Compare(gap.at) < 0 {
				gap = &gapError{r.Cursor}
			}
			continue
		}
		p.metrics.countOutcomes(p.cfg.Origin, r)
	}
	if gap != nil {
		return gap
	}
	return nil
}

// logGap counts and logs that effects are missing before h, unless it has for the same place.
func (p *progress) logGap(h *wire.Header, at wire.ID) {
	p.mu.Lock()
	again := p.gapAt != nil && *p.gapAt == at
	p.gapAt = &at
	p.mu.Unlock()
	if again {
		return
	}
	p.metrics.gaps.WithLabelValues(p.cfg.Origin).Inc()
	p.log.Warn("effects are missing: reading them again from the topic", zap.Stringer("cursor", at), zap.Stringer("next", h.First), zap.Stringer("prev", h.Prev))
}

// cannotApply returns the error for a message that cannot be applied.
func cannotApply(d *messaging.Delivery, h *wire.Header, err error) error {
	return fmt.Errorf("message %s of %s, with effects of zone %s up to %s, cannot be applied, and later messages of this topic wait: %w: see docs/sonic-replication.md, A message that cannot be applied",
		d.ID, d.Topic, h.Origin, h.Last, err)
}

// reportGap sets Status.Gap and returns the error for missing effects that the topic does not have
// any more.
func (p *progress) reportGap(h *wire.Header, at wire.ID) error {
	p.mu.Lock()
	p.status.Gap = true
	p.mu.Unlock()
	return fmt.Errorf("effects of zone %s after %s, up to %s, are missing, and the topic no longer has them: see docs/sonic-replication.md, A gap", p.cfg.Origin, at, h.Prev)
}
