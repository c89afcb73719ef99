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
	begin = message.Max(begin, l.held.last())
	// What was published since the subscription began may come before some of it.
	early, err := l.stored(ctx, begin, message.ID{})
	if err != nil {
		return err
	}
	if len(early) > 0 { // what is published next says that all before it has come
		if err := l.lane.Beat(ctx); err != nil {
			return fmt.Errorf("cannot beat: %w", err)
		}
	}
	for {
		list, err := live.receive()
		for i := range list {
			p := &list[i]
			if lost := p.number - p.writes - heard; lost > 0 {
				if err := l.lose(ctx, lost); err != nil {
					return err
				}
			}
			heard = max(heard, p.number)
			if n := upTo(early, p.entry.ID); n > 0 {
				l.held.add(early[:n])
				begin, early = early[n-1].ID, early[n:]
			}
			if p.entry.ID.Compare(begin) <= 0 {
				l.held.note(p.entry.ID, heard)
				continue
			}
			if p.stored {
				large, err := l.stored(ctx, begin, p.entry.ID)
				if err != nil {
					return err
				}
				l.held.add(large)
			} else {
				l.held.add([]message.Entry{p.entry})
			}
			begin = p.entry.ID
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

// stored returns what the stream holds behind begin, up to end unless that is zero: large effects, and what was there when effects still went by way
// of it.
func (l *loader) stored(ctx context.Context, begin, end message.ID) (all []message.Entry, err error) {
	to := "+"
	if !end.IsZero() {
		to = end.String()
	}
	var joiner message.Joiner
	for {
		found, err := l.redis.XRangeN(ctx, l.lane.Outbox(), "("+begin.String(), to, readLeast).Result()
		if err != nil {
			return nil, fmt.Errorf("cannot read the outbox: %w", err)
		}
		entries, err := entriesOf(&joiner, found)
		if err != nil {
			return nil, err
		}
		all = append(all, entries...)
		if len(found) == 0 {
			return all, nil
		}
		if begin, err = message.ParseID(found[len(found)-1].ID); err != nil {
			return nil, err
		}
	}
}

// upTo returns how many of entries are not behind id.
func upTo(entries []message.Entry, id message.ID) (n int) {
	for n < len(entries) && entries[n].ID.Compare(id) <= 0 {
		n++
	}
	return n
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
