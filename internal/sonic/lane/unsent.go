package lane

import (
	"context"
	"errors"

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// Unsent tells of effects that do not go by way of the stream.
type Unsent struct {
	Skips     bool  // effects are dropped, and what they changed is noted
	Noted     int64 // keys, elements and counters that are noted
	Published int64 // effects published since the library was loaded; the first is 1
	Stored    int64 // of these, how many the topic has
	Lost      int64 // effects that are lost, since the zone began
}

// Unsent asks for them.
func (l *Lane) Unsent(ctx context.Context) (Unsent, error) {
	reply, err := l.call(ctx, "sonic_unsent").Slice()
	if err != nil {
		return Unsent{}, err
	}
	f := fields{values: reply}
	u := Unsent{Skips: f.text() == "1", Noted: f.number(), Published: f.number(), Stored: f.number(), Lost: f.number()}
	return u, f.fault("sonic_unsent")
}

// Unstored asks, before another version of the library is replaced, how many of the effects that it has published, of published, are not known to be stored:
// what is published is counted anew then. It is 0 where the library is of this version, and while somebody listens, who may hold them. With owner, for who has
// the topic and holds nothing, it is so many all the same: nobody else can store them.
func (l *Lane) Unstored(ctx context.Context, owner bool) (n, published int64, err error) {
	if loaded, err := script.Loaded(ctx, l.redis); err != nil || loaded {
		return 0, 0, err
	}
	u, err := l.Unsent(ctx)
	switch {
	case isReply(err, "ERR Function not found"), errors.Is(err, errReply):
		return 0, 0, nil // there is no library, or it is of a version that publishes nothing
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

// Load has the Redis run this version of the library, see [script.Load]. Where it runs another one, which another version of Sonic has loaded, it is not
// open afterwards, and what is published is counted anew: see Unstored.
func (l *Lane) Load(ctx context.Context) error { return script.Load(ctx, l.redis) }

// NoMemory reports whether Redis refused because it has reached its bound of memory. It takes no library then.
func NoMemory(err error) bool { return isReply(err, "OOM") }

// Skip has effects be dropped from now on, or not. What they change is noted meanwhile, see [Lane.Resend]. Open has them not be dropped.
func (l *Lane) Skip(ctx context.Context, skips bool) error {
	flag := "0"
	if skips {
		flag = "1"
	}
	return l.call(ctx, "sonic_skip", flag).Err()
}

// Resend has the state of about count things that are noted be an effect, and forgets them. id is the effect's, zero when there is none. left is how
// many are noted still. Nothing happens while effects are dropped.
func (l *Lane) Resend(ctx context.Context, count int) (id message.ID, left int64, err error) {
	reply, err := l.call(ctx, "sonic_resend", count).Slice()
	if err != nil {
		return message.ID{}, 0, err
	}
	f := fields{values: reply}
	id, left = f.id(), f.number()
	return id, left, f.fault("sonic_resend")
}

// Lose counts effects that are lost.
func (l *Lane) Lose(ctx context.Context, n int64) error { return l.call(ctx, "sonic_lost", n).Err() }

// Channel is the shard channel that effects are published on.
func (l *Lane) Channel() string { return script.KeysOf(l.cfg.Lane).Live }
