package outbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Bounds of the effects held in memory with Off, in bytes. Above maxHeldBytes, Redis drops effects
// and notes what they change. Below resumeHeldBytes, it stops dropping them.
const (
	maxHeldBytes    = 16 << 20
	resumeHeldBytes = 4 << 20
)

// drainTimeout is how long, at the end of a session, listen waits for the effects that Redis has
// already published.
const drainTimeout = 2 * time.Second

// listenAfter returns the effect after which listen continues: stored, the last effect in the
// topic, or the last held effect if that is later. Without this, listen would read large held
// effects again, which are also in the stream.
func (l *loader) listenAfter(stored wire.ID) wire.ID {
	return wire.Max(stored, l.held.lastID())
}

// listen receives the effects after begin as Redis publishes them, until running ends. Then it
// receives the rest that Redis has already published: no other process would get them.
func (l *loader) listen(running context.Context, live *subscription, begin wire.ID) error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(running))
	defer cancel()
	defer context.AfterFunc(running, func() {
		live.unsubscribe(l.library.Channel(), drainTimeout)
		time.AfterFunc(drainTimeout, cancel)
	})()
	u, err := l.library.Unsent(ctx)
	if err != nil {
		return fmt.Errorf("cannot ask Redis what it has published: %w", err)
	}
	l.dropping.Store(u.Dropping)
	received := l.held.syncReceived(u)
	// These are in the stream. Effects that were published since the subscription began may have to
	// go before some of them.
	inStream, err := l.readRange(ctx, begin, wire.ID{})
	if err != nil {
		return err
	}
	if len(inStream) > 0 { // the heartbeat is published after everything earlier, so that its arrival shows that all of it has arrived
		if err := l.library.SendHeartbeat(ctx); err != nil {
			return fmt.Errorf("cannot send a heartbeat: %w", err)
		}
	}
	for {
		list, err := live.receive()
		for i := range list {
			p := &list[i]
			if lost := p.number - p.writes - received; lost > 0 {
				if err := l.countLost(ctx, lost); err != nil {
					return err
				}
			}
			received = max(received, p.number)
			n := upTo(inStream, p.entry.ID)
			next := slices.Clip(inStream[:n])
			if inStream = inStream[n:]; n > 0 {
				begin = next[n-1].ID
			}
			switch {
			case p.entry.ID.Compare(begin) <= 0:
			case p.inStream:
				large, err := l.readRange(ctx, begin, p.entry.ID)
				if err != nil {
					l.held.add(next)
					return err
				}
				next, begin = append(next, large...), p.entry.ID
			default:
				next, begin = append(next, p.entry), p.entry.ID
			}
			l.held.addPublished(next, p.entry.ID, received)
		}
		if err != nil {
			if running.Err() != nil {
				return context.Cause(running)
			}
			return err
		}
		if l.held.size() > maxHeldBytes && !l.dropping.Load() {
			if err := l.library.SetDropping(ctx, true, redislib.Bound{}); err != nil {
				return fmt.Errorf("cannot have Redis drop effects: %w", err)
			}
			l.dropping.Store(true)
			l.log.Error("the memory for waiting effects is full: Redis drops new effects and notes what they change", zap.Int("bytes", l.held.size()))
		}
	}
}

// drainSubscription receives what Redis has published since the subscription began, and ends the
// subscription. It is for a session that could not start.
func (l *loader) drainSubscription(ctx context.Context, live *subscription) {
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := l.listen(ended, live, l.listenAfter(l.packer.Tail.Last)); !errors.Is(err, context.Canceled) {
		l.log.Warn("cannot receive all effects that Redis has published", zap.Error(err))
	}
}

// countUnstored counts published effects that were never stored as lost. A process that shipped
// with Off held them when it ended. This process does not use Off, so the count is final.
func (l *loader) countUnstored(ctx context.Context) error {
	u, err := l.library.Unsent(ctx)
	if err != nil {
		return fmt.Errorf("cannot ask Redis what it has published: %w", err)
	}
	if u.Published <= u.Stored {
		return nil
	}
	if err := l.countLost(ctx, u.Published-u.Stored); err != nil {
		return err
	}
	if err := l.library.Shipped(ctx, l.packer.Tail.Last, u.Published); err != nil {
		return fmt.Errorf("cannot mark the lost effects as counted: %w", err)
	}
	return nil
}

// readRange returns the effects of the stream after begin, up to end unless end is zero. With Off
// these are large effects, and those from before Off was switched on.
func (l *loader) readRange(ctx context.Context, begin, end wire.ID) (all []wire.Entry, err error) {
	to := "+"
	if !end.IsZero() {
		to = end.String()
	}
	var joiner wire.Joiner
	for {
		found, err := l.redis.XRangeN(ctx, l.library.Outbox(), "("+begin.String(), to, minReadCount).Result()
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
		if begin, err = wire.ParseID(found[len(found)-1].ID); err != nil {
			return nil, err
		}
	}
}

// upTo returns how many of entries are not after id.
func upTo(entries []wire.Entry, id wire.ID) (n int) {
	for n < len(entries) && entries[n].ID.Compare(id) <= 0 {
		n++
	}
	return n
}

// resend ships the state of resendCount noted keys, elements and counters at a time, and waits
// until it is stored before the next.
const (
	resendCount = 256
	resendPause = 5 * time.Millisecond
	resendIdle  = 200 * time.Millisecond
)

// resend ships the state of everything that dropped effects changed.
func (l *loader) resend(ctx context.Context) error {
	var waits wire.ID // the effect of the last Resend, until it is stored
	busy := false
	for {
		pause := resendIdle
		if busy {
			pause = resendPause
		}
		if !backoff.Sleep(ctx, pause) {
			return nil
		}
		if l.dropping.Load() && l.held.size() < resumeHeldBytes {
			if err := l.library.SetDropping(ctx, false, redislib.Bound{}); err != nil {
				return fmt.Errorf("cannot have Redis publish effects: %w", err)
			}
			l.dropping.Store(false)
		}
		if l.Status().Stored.Compare(waits) < 0 {
			continue
		}
		id, left, err := l.library.Resend(ctx, resendCount)
		if err != nil && !redislib.NotReady(err) {
			return fmt.Errorf("cannot ship what was dropped: %w", err)
		}
		switch {
		case !id.IsZero() && !busy:
			l.log.Info("shipping the state of the data that changed while effects were dropped", zap.Int64("left", left))
		case id.IsZero() && busy:
			l.log.Info("stopped shipping state: all of it is shipped, or effects are dropped again", zap.Int64("left", left))
		}
		busy, waits = !id.IsZero(), wire.Max(waits, id)
	}
}
