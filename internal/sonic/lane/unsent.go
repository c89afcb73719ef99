package lane

import (
	"context"

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
