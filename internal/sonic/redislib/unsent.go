package redislib

import (
	"context"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Unsent describes effects that the topic does not have yet: those of the stream, and those that
// were dropped.
type Unsent struct {
	Dropping bool  // the library drops effects, and notes what they changed
	Noted    int64 // number of noted keys, elements and counters
	Lost     int64 // effects lost since the zone began

	Entries, Bytes int64         // of the stream
	Age            time.Duration // of the stream's first entry
	Bound          Bound         // of the stream
}

// Unsent asks the library for these numbers.
func (l *Library) Unsent(ctx context.Context) (Unsent, error) {
	v := ValuesOf(l.call(ctx, "sonic_unsent").Result())
	u := Unsent{
		Dropping: v.Text() == "1", Noted: v.Number(), Lost: v.Number(),
		Entries: v.Number(), Bytes: v.Number(), Age: time.Duration(v.Number()) * time.Millisecond,
		Bound: Bound{Bytes: max(v.Number(), 0), Drops: v.Text() == "1"},
	}
	return u, v.Err()
}

// Load makes Redis use this version of the library, see [script.Load]. If it replaces another
// version, Redis is not open afterwards.
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
	return l.call(ctx, "sonic_drop", drops, bytes, bound.Drops).Err()
}

// Resend makes the library write the state of about count noted keys, elements and counters as one
// effect, and removes them from the notes. id is the effect's, zero if there is none. left is how
// many are still noted. Resend does nothing while the library drops effects.
func (l *Library) Resend(ctx context.Context, count int) (id wire.ID, left int64, err error) {
	v := ValuesOf(l.call(ctx, "sonic_resend", count).Result())
	return v.ID(), v.Number(), v.Err()
}
