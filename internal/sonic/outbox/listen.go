package outbox

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// What is held in memory with Off. From the one on Redis drops effects, and notes what they changed; below the other it does not any more.
const (
	heldMost  = 16 << 20
	heldLeast = 4 << 20
)

// listen takes effects as Redis publishes them.
func (l *loader) listen(ctx context.Context, live *subscription, begin message.ID) error {
	defer context.AfterFunc(ctx, live.close)()
	u, err := l.lane.Unsent(ctx)
	if err != nil {
		return fmt.Errorf("cannot ask Redis what it has published: %w", err)
	}
	l.skips.Store(u.Skips)
	if err := l.forget(ctx); err != nil {
		return err
	}
	heard := l.held.heard(u)
	if begin, err = l.take(ctx, message.Max(begin, l.held.last()), message.ID{}); err != nil {
		return err
	}
	for {
		list, err := live.receive()
		for i := range list {
			p := &list[i]
			if lost := p.number - heard - 1; lost > 0 {
				if err := l.lose(ctx, lost); err != nil {
					return err
				}
			}
			heard = max(heard, p.number)
			if p.entry.ID.Compare(begin) <= 0 {
				l.held.note(p.entry.ID, heard)
				continue
			}
			if p.stored {
				if begin, err = l.take(ctx, begin, p.entry.ID); err != nil {
					return err
				}
			} else {
				begin = p.entry.ID
				l.held.add([]message.Entry{p.entry})
			}
			l.held.note(p.entry.ID, heard)
		}
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return err
		}
		if l.held.size() > heldMost && !l.skips.Load() {
			if err := l.lane.Skip(ctx, true); err != nil {
				return fmt.Errorf("cannot have Redis drop effects: %w", err)
			}
			l.skips.Store(true)
			l.log.Error("effects wait in memory, and it is full: Redis drops them, and notes what they change", zap.Int("bytes", l.held.size()))
		}
	}
}

// take takes what the stream holds behind begin, up to end unless that is zero: large effects, and what was there when effects still went by way of it.
// It returns the last one's id, begin when there is none.
func (l *loader) take(ctx context.Context, begin, end message.ID) (message.ID, error) {
	to := "+"
	if !end.IsZero() {
		to = end.String()
	}
	var joiner message.Joiner
	for {
		found, err := l.redis.XRangeN(ctx, l.lane.Outbox(), "("+begin.String(), to, readLeast).Result()
		if err != nil {
			return begin, fmt.Errorf("cannot read the outbox: %w", err)
		}
		entries, err := entriesOf(&joiner, found)
		if err != nil {
			return begin, err
		}
		l.held.add(entries)
		if len(found) == 0 {
			return begin, nil
		}
		if begin, err = message.ParseID(found[len(found)-1].ID); err != nil {
			return begin, err
		}
	}
}

// lose says that effects are lost, and counts them.
func (l *loader) lose(ctx context.Context, n int64) error {
	l.log.Error("effects are lost: other zones do not have what they changed. Find and repair it by sonic -repair", zap.Int64("at_most", n))
	if err := l.lane.Lose(ctx, n); err != nil {
		return fmt.Errorf("cannot count what is lost: %w", err)
	}
	return nil
}

// How what was dropped is shipped: so many things at once, one such effect behind the other.
const (
	resendCount = 256
	resendPause = 5 * time.Millisecond
	resendIdle  = 200 * time.Millisecond
)

// resend ships the state of what was changed by effects that were dropped.
func (l *loader) resend(ctx context.Context) error {
	var waits message.ID // for it to be stored
	busy := false
	for {
		pause := resendIdle
		if busy {
			pause = resendPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		if l.skips.Load() && l.held.size() < heldLeast {
			if err := l.lane.Skip(ctx, false); err != nil {
				return fmt.Errorf("cannot have Redis publish effects: %w", err)
			}
			l.skips.Store(false)
		}
		if l.Status().Stored.Compare(waits) < 0 {
			continue
		}
		id, left, err := l.lane.Resend(ctx, resendCount)
		if err != nil && !lane.NotReady(err) {
			return fmt.Errorf("cannot ship what was dropped: %w", err)
		}
		switch {
		case !id.IsZero() && !busy:
			l.log.Info("shipping the state of what was changed while effects were dropped", zap.Int64("left", left))
		case id.IsZero() && busy:
			l.log.Info("no state waits to be shipped, or effects are dropped again", zap.Int64("left", left))
		}
		busy, waits = !id.IsZero(), message.Max(waits, id)
	}
}
