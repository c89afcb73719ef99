package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// hearTimeout is how long what Redis has published by the end of a session may take to be received.
const hearTimeout = 2 * time.Second

// behindHeld returns what listen goes on behind: stored, which the topic has, or the last effect that is held. Large ones of these are in the stream still.
func (l *loader) behindHeld(stored message.ID) message.ID { return message.Max(stored, l.held.last()) }

// listen takes effects behind begin as Redis publishes them, until running ends, and then those that Redis has published by then: nobody else gets
// them.
func (l *loader) listen(running context.Context, live *subscription, begin message.ID) error {
	ctx, give := context.WithCancel(context.WithoutCancel(running))
	defer give()
	defer context.AfterFunc(running, func() {
		live.end(l.lane.Channel(), hearTimeout)
		time.AfterFunc(hearTimeout, give)
	})()
	u, err := l.lane.Unsent(ctx)
	if err != nil {
		return fmt.Errorf("cannot ask Redis what it has published: %w", err)
	}
	l.skips.Store(u.Skips)
	heard := l.held.heard(u)
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
			n := upTo(early, p.entry.ID)
			news := slices.Clip(early[:n])
			if early = early[n:]; n > 0 {
				begin = news[n-1].ID
			}
			switch {
			case p.entry.ID.Compare(begin) <= 0:
			case p.stored:
				large, err := l.stored(ctx, begin, p.entry.ID)
				if err != nil {
					l.held.add(news)
					return err
				}
				news, begin = append(news, large...), p.entry.ID
			default:
				news, begin = append(news, p.entry), p.entry.ID
			}
			l.held.addPublished(news, p.entry.ID, heard)
		}
		if err != nil {
			if running.Err() != nil {
				return context.Cause(running)
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

// hear takes what Redis has published since the subscription began, and ends it: the session does not begin.
func (l *loader) hear(ctx context.Context, live *subscription) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := l.listen(ended, live, l.behindHeld(l.packer.Tail.Last)); !errors.Is(err, context.Canceled) {
		l.log.Warn("cannot receive all effects that Redis has published", zap.Error(err))
	}
}

// missed counts as lost what another process has held that shipped with Off and ended: nobody listens for what follows it any more.
func (l *loader) missed(ctx context.Context) error {
	u, err := l.lane.Unsent(ctx)
	if err != nil {
		return fmt.Errorf("cannot ask Redis what it has published: %w", err)
	}
	if u.Published <= u.Stored {
		return nil
	}
	if err := l.lose(ctx, u.Published-u.Stored); err != nil {
		return err
	}
	if err := l.lane.Shipped(ctx, l.packer.Tail.Last, u.Published); err != nil {
		return fmt.Errorf("cannot say that it is counted: %w", err)
	}
	return nil
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
