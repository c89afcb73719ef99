// Package redislib calls the functions of the library in one Redis, or in a primary of a Redis
// Cluster: they read its state, open it for writes, and apply effects of other zones. The library
// (internal/sonic/script/lua) documents the functions and their guarantees. The package may import
// script, wire and cluster.
package redislib

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Layout is the version of the state keys that this Sonic knows.
const Layout = 2

// Config is what Open passes to the library.
type Config struct {
	Zone   string
	Others []string // the other zones
	// Default is the policy of keys that no prefix matches. Policies are those of prefixes.
	Default  string
	Policies []Policy
	// Bound is what Open sets as the stream's bound.
	Bound Bound
}

// Bound is how many bytes of effects the stream may hold. Past it the library refuses writes, or,
// if Drops is true, drops their effects. Bytes is 0 for no bound.
type Bound struct {
	Bytes int64
	Drops bool
}

// Policy says how to resolve conflicts about keys that begin with Prefix.
type Policy struct{ Prefix, Policy string }

// Library is the library of one Redis. It is safe for concurrent use.
type Library struct {
	cfg    Config
	redis  redisClient
	outbox string
}

// redisClient is a client of go-redis, or one of its connections.
type redisClient interface {
	redis.Cmdable
	Do(ctx context.Context, args ...any) *redis.Cmd
}

// New returns the library of a Redis. It sends no request.
func New(db redisClient, cfg Config) *Library {
	return &Library{cfg: cfg, redis: db, outbox: script.KeysOf(0).Outbox}
}

// Outbox returns the name of the stream of effects.
func (l *Library) Outbox() string { return l.outbox }

// State is the state of a Redis.
type State struct {
	Layout  int
	Zone    string // empty: this Redis is new
	Epoch   int64
	Last    wire.ID // last id of the stream of effects
	Shipped wire.ID
	// Opened says that a Sonic has opened this Redis since it started. Ready says that it takes
	// writes.
	Opened, Ready bool
	// Behind is not empty if this Redis came back with older data. It holds the cursors that this
	// zone has reported to other zones, and that it must reach again before it takes writes.
	Behind  map[string]wire.ID
	Cursors map[string]Cursor
	// History is HistoryRejected, HistoryAccepted or empty.
	History string
}

// Values of State.History.
const (
	HistoryRejected = "rejected" // the effects of this Redis are not those of the topic
	HistoryAccepted = "accepted" // an operator has accepted them
)

// Cursor says how far the effects of a zone are applied.
type Cursor struct {
	ID      wire.ID
	Message string // the message id that Apply got with the effect
}

// ReadState returns the state. It loads the library if Redis does not have it.
func (l *Library) ReadState(ctx context.Context) (State, error) {
	look := l.call(ctx, "sonic_state")
	if NoFunction(look.Err()) {
		if err := script.Load(ctx, l.redis); err != nil {
			return State{}, err
		}
		look = l.call(ctx, "sonic_state")
	}
	return stateOf(ValuesOf(look.Result()))
}

// Open passes the configuration to the library and opens Redis for writes, with ids above
// floor. before is the state that the caller has read: Open fails with [Older] if the stream now
// ends before before.Last, because Redis was replaced or restarted meanwhile. In the returned state
// Ready is false if Redis must first apply effects of other zones.
func (l *Library) Open(ctx context.Context, before State, epoch int64, floor wire.ID) (State, error) {
	if !before.Opened {
		// A Redis at its memory limit refuses to load a library. Open goes on with the library that
		// Redis has, which is not open.
		if err := script.Replace(ctx, l.redis); err != nil && !NoMemory(err) {
			return State{}, err
		}
	}
	flags := before.Last.String()
	if bound := l.cfg.Bound; bound.Bytes > 0 {
		flags += fmt.Sprintf("b%d", bound.Bytes)
		if bound.Drops {
			flags += "d"
		}
	}
	args := append([]any{l.cfg.Zone, epoch, floor.String(), flags}, l.cfg.settings()...)
	return stateOf(ValuesOf(l.call(ctx, "sonic_open", args...).Result()))
}

// settings returns the other zones and the policies, as the library reads them.
func (c Config) settings() []any {
	args := []any{len(c.Others)}
	for _, other := range c.Others {
		args = append(args, other)
	}
	args = append(args, c.Default)
	for _, p := range c.Policies {
		args = append(args, p.Prefix, p.Policy)
	}
	return args
}

// Close makes Redis refuse writes until Open is called.
func (l *Library) Close(ctx context.Context) error { return l.call(ctx, "sonic_close").Err() }

// RejectHistory closes Redis, and marks that its effects are not those of the topic. See
// [State.History]; Open removes the mark.
func (l *Library) RejectHistory(ctx context.Context) error {
	return l.call(ctx, "sonic_close", HistoryRejected).Err()
}

// Result is the outcome of applying a message.
type Result struct {
	Status        string // applied, part, duplicate or gap
	Cursor        wire.ID
	CursorMessage string // the message id that Apply got with the cursor
	// Entries is the number of entries in the message. Of its effects, Applied were applied, Lost
	// lost to newer ones, Dead were for keys that had expired, and Diverged could not be applied to
	// what the key holds. Wanted is how many keys' states the library has asked the origin for.
	Entries, Applied, Lost, Dead, Diverged, Wanted int64
	ClockAhead                                     int64 // how many milliseconds the clock of effects is ahead of Redis' own clock
}

// Values of Result.Status.
const (
	Applied   = "applied"
	Part      = "part" // kept until the other parts arrive
	Duplicate = "duplicate"
	Gap       = "gap" // effects before it are missing; nothing was changed
)

// Apply applies a message. The library stores its message id with the cursor.
func (l *Library) Apply(ctx context.Context, h *wire.Header, payload []byte, id string) (Result, error) {
	part := ""
	if h.Parts > 1 {
		part = fmt.Sprintf("%d/%d", h.Part, h.Parts)
	}
	return ApplyResult(l.call(ctx, "sonic_apply", h.Origin, h.Epoch, h.Prev.String(), h.Last.String(), part, id, payload).Result())
}

// Shipped records that the topic has all effects up to id, and removes them from the stream.
func (l *Library) Shipped(ctx context.Context, id wire.ID) error {
	return l.call(ctx, "sonic_shipped", id.String()).Err()
}

// ShippedTo returns the last id that any process has passed to Shipped.
func (l *Library) ShippedTo(ctx context.Context) (wire.ID, error) {
	text, err := l.redis.HGet(ctx, script.KeysOf(0).Meta, "shipped").Result()
	if errors.Is(err, redis.Nil) {
		return wire.ID{}, nil
	}
	if err != nil {
		return wire.ID{}, err
	}
	return wire.ParseID(text)
}

// SendHeartbeat sends a heartbeat to the other zones. It fails with [NotReady] if Redis was
// restarted.
func (l *Library) SendHeartbeat(ctx context.Context) error {
	if err := l.call(ctx, "sonic_beat").Err(); !errors.Is(err, redis.Nil) {
		return err
	}
	return nil // no other zone exists
}

// Prune makes one step of removing versions that no zone needs any more. It returns the cursor of
// the next step, "0" at the end of a round, and how many versions are left.
func (l *Library) Prune(ctx context.Context, cursor string, count int) (next string, left int64, err error) {
	v := ValuesOf(l.call(ctx, "sonic_prune", cursor, count).Result())
	next = v.Text()
	_, _ = v.Number(), v.Number() // deleted, seen
	return next, v.Number(), v.Err()
}

func (l *Library) call(ctx context.Context, function string, args ...any) *redis.Cmd {
	return l.redis.Do(ctx, append([]any{"FCALL", function, 1, l.outbox}, args...)...)
}

// NotReady reports whether a function failed because no Sonic has opened this Redis since it
// started, or because its data are older than they were.
func NotReady(err error) bool { return script.IsReply(err, "SONICNOTREADY") }

// NoFunction reports whether Redis does not have the library, or one without this function.
func NoFunction(err error) bool { return script.IsReply(err, "ERR Function not found") }

// Older reports whether the caller has not the latest state: Open fails with it if the data of this
// Redis are older than when the caller read its state, and Take if another one reads since.
func Older(err error) bool { return script.IsReply(err, "SONICOLDER") }

// Unfilled reports whether Redis was not filled to the end by a bootstrap.
func Unfilled(err error) bool { return script.IsReply(err, "SONICBOOTSTRAP") }

// Fatal reports whether Open has failed because of its arguments or of the state of this Redis: trying
// again does not help. It may help after any other error, also one that is not known here.
func Fatal(err error) bool {
	return script.IsReply(err, "SONICZONE", "SONICLAYOUT", "SONICBOOTSTRAP")
}

// Rejected reports whether the library has failed because of the message that it was to apply. Only
// another version of the library may apply it. Errors of Redis itself, which keep their own prefix in
// a function, are not the message's fault: the same message may be applied later.
func Rejected(err error) bool {
	return script.IsReply(err, "SONICPAYLOAD", "SONICNEWER", "ERR user_function")
}

// stateOf reads the reply of sonic_state: name, value, name, value.
func stateOf(v *Values) (State, error) {
	s := State{Behind: map[string]wire.ID{}, Cursors: map[string]Cursor{}}
	for v.More() {
		switch v.Text() {
		case "layout":
			s.Layout = int(v.Number())
		case "zone":
			s.Zone = v.Text()
		case "epoch":
			s.Epoch = v.Number()
		case "last":
			s.Last = v.ID()
		case "shipped":
			s.Shipped = v.ID()
		case "opened":
			s.Opened = v.Text() == "1"
		case "ready":
			s.Ready = v.Text() == "1"
		case "history":
			s.History = v.Text()
		case "behind":
			for b := v.List(); b.More(); {
				zone := b.Text()
				s.Behind[zone] = b.ID()
			}
		case "cursors":
			for c := v.List(); c.More(); {
				zone := c.Text()
				s.Cursors[zone] = Cursor{ID: c.ID(), Message: c.Text()}
				_ = c.Text() // the epoch of the effect
			}
		default:
			_ = v.next()
		}
	}
	return s, v.Err()
}
