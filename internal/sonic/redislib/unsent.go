package redislib

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Unsent describes effects that the topic does not have yet: those of the stream, and those that do
// not go through it.
type Unsent struct {
	Dropping  bool  // the library drops effects, and notes what they changed
	Noted     int64 // number of noted keys, elements and counters
	Published int64 // effects published since the library was loaded; the first is 1
	Stored    int64 // how many of these the topic has
	Lost      int64 // effects lost since the zone began

	Entries, Bytes int64         // of the stream
	Age            time.Duration // of the stream's first entry
	Bound          Bound         // of the stream
}

// Unsent asks the library for these numbers.
func (l *Library) Unsent(ctx context.Context) (Unsent, error) {
	reply, err := l.call(ctx, "sonic_unsent").Slice()
	if err != nil {
		return Unsent{}, err
	}
	f := fields{values: reply}
	u := Unsent{
		Dropping: f.text() == "1", Noted: f.number(), Published: f.number(), Stored: f.number(), Lost: f.number(),
		Entries: f.number(), Bytes: f.number(), Age: time.Duration(f.number()) * time.Millisecond,
		Bound: Bound{Bytes: max(f.number(), 0), Drops: f.text() == "1"},
	}
	return u, f.fault("sonic_unsent")
}

// Unstored is called before Load replaces another version of the library, which resets the count of
// published effects. n is how many of the published effects are not known to be stored. It is 0 if
// the library has this version already, and while a process is subscribed to the channel: that
// process may hold the effects. owner says that the caller owns the topic and holds no effects.
// Then n also counts effects that a subscriber holds, since no other process can store them.
func (l *Library) Unstored(ctx context.Context, owner bool) (n, published int64, err error) {
	if loaded, err := script.Loaded(ctx, l.redis); err != nil || loaded {
		return 0, 0, err
	}
	u, err := l.Unsent(ctx)
	switch {
	case NoFunction(err), errors.Is(err, errReply):
		return 0, 0, nil // no library is loaded, or its version publishes nothing
	case err != nil:
		return 0, 0, err
	case u.Published <= u.Stored:
		return 0, 0, nil
	case !owner:
		listeners, err := l.redis.PubSubShardNumSub(ctx, l.Channel()).Result()
		if err != nil || listeners[l.Channel()] > 0 {
			return 0, 0, err
		}
	}
	return u.Published - u.Stored, u.Published, nil
}

// Load makes Redis use this version of the library, see [script.Load]. If it replaces another
// version, Redis is not open afterwards, and the count of published effects starts over: see
// Unstored.
func (l *Library) Load(ctx context.Context) error { return script.Load(ctx, l.redis) }

// NoMemory reports whether Redis refused because it has reached its memory limit. It cannot load a
// library then.
func NoMemory(err error) bool { return script.IsReply(err, "OOM") }

// SetDropping makes the library drop effects from now on, or stop dropping them, and sets the bound
// of the stream. The library notes what dropped effects change, see [Library.Resend]. Open ends the
// dropping.
func (l *Library) SetDropping(ctx context.Context, drops bool, bound Bound) error {
	bytes := ""
	if bound.Bytes > 0 {
		bytes = strconv.FormatInt(bound.Bytes, 10)
	}
	return l.call(ctx, "sonic_skip", drops, bytes, bound.Drops).Err()
}

// Resend makes the library write the state of about count noted keys, elements and counters as one
// effect, and removes them from the notes. id is the effect's, zero if there is none. left is how
// many are still noted. Resend does nothing while the library drops effects.
func (l *Library) Resend(ctx context.Context, count int) (id wire.ID, left int64, err error) {
	reply, err := l.call(ctx, "sonic_resend", count).Slice()
	if err != nil {
		return wire.ID{}, 0, err
	}
	f := fields{values: reply}
	id, left = f.id(), f.number()
	return id, left, f.fault("sonic_resend")
}

// AddLost adds n to the number of lost effects.
func (l *Library) AddLost(ctx context.Context, n int64) error {
	return l.call(ctx, "sonic_lost", n).Err()
}

// Channel returns the shard channel on which the library publishes effects.
func (l *Library) Channel() string { return script.KeysOf(l.cfg.Shard).Live }
