// Package lane calls the functions of the library that are about one lane of effects: looking at what a Redis holds, opening it for writes, applying
// what other zones did. The functions and what they promise are described in the library.
package lane

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// Layout is the version of the state keys that this Sonic knows.
const Layout = 2

// Config says what the library is told when it opens.
type Config struct {
	Lane   int
	Zone   string
	Others []string // the other zones
	// Default is the policy of keys that no prefix fits; Policies are those of prefixes.
	Default  string
	Policies []Policy
	// Off has effects be published on the lane's channel in place of being appended to the stream.
	Off bool
}

// Policy says how conflicts about keys that begin with Prefix are resolved.
type Policy struct{ Prefix, Policy string }

// Lane is a lane in one Redis. It is safe for concurrent use.
type Lane struct {
	cfg    Config
	redis  *redis.Client
	outbox string
}

// New makes one. It asks nothing.
func New(db *redis.Client, cfg Config) *Lane {
	return &Lane{cfg: cfg, redis: db, outbox: script.KeysOf(cfg.Lane).Outbox}
}

// Outbox is the name of the stream of effects.
func (l *Lane) Outbox() string { return l.outbox }

// State is what a Redis holds.
type State struct {
	Layout  int
	Zone    string // empty: none, a new Redis
	Epoch   int64
	Last    message.ID // of the stream of effects
	Shipped message.ID
	// Opened says that a Sonic has opened it since it started; Ready, that it takes writes.
	Opened, Ready bool
	// Behind are the cursors that the other zones have been told of and that this Redis, being older now, must reach again before it takes writes.
	Behind  map[string]message.ID
	Cursors map[string]Cursor
}

// Cursor is how far the effects of a zone are applied.
type Cursor struct {
	ID      message.ID
	Message string // what Apply was given with it
	Epoch   int64
}

// Look returns what the Redis holds. It loads the library where there is none.
func (l *Lane) Look(ctx context.Context) (State, error) {
	reply, err := l.call(ctx, "sonic_look").Slice()
	if err != nil && strings.Contains(err.Error(), "Function not found") {
		if err := script.Load(ctx, l.redis); err != nil {
			return State{}, err
		}
		reply, err = l.call(ctx, "sonic_look").Slice()
	}
	if err != nil {
		return State{}, err
	}
	return stateOf(reply)
}

// Open tells the library the lane's configuration and has it take writes, under ids above floor. before is what the Redis is known to hold: one whose
// stream ends before before.Last is refused, see [Older], for it was exchanged or restarted meanwhile. Ready of the state that it returns is false
// while the effects of other zones must be applied before.
func (l *Lane) Open(ctx context.Context, before State, epoch int64, floor message.ID) (State, error) {
	if !before.Opened {
		// Without memory Redis takes no library. It is opened all the same: the one that it has is not open.
		if err := script.Replace(ctx, l.redis); err != nil && !isReply(err, "OOM") {
			return State{}, err
		}
	}
	flags := before.Last.String()
	if l.cfg.Off {
		flags += "o"
	}
	args := []any{l.cfg.Zone, epoch, floor.String(), flags, len(l.cfg.Others)}
	for _, other := range l.cfg.Others {
		args = append(args, other)
	}
	args = append(args, l.cfg.Default)
	for _, p := range l.cfg.Policies {
		args = append(args, p.Prefix, p.Policy)
	}
	reply, err := l.call(ctx, "sonic_open", args...).Slice()
	if err != nil {
		return State{}, err
	}
	return stateOf(reply)
}

// Result is what became of a message.
type Result struct {
	Status        string // applied, part, duplicate or gap
	Cursor        message.ID
	CursorMessage string // what Apply was given with the cursor
	// Entries of the message; of its effects, how many were applied, lost to newer ones, were dead (the key had expired), could not be applied as they are, and how
	// many keys' states were asked of the origin.
	Entries, Applied, Lost, Dead, Diverged, Wanted int64
	Ahead                                          int64 // milliseconds that the clock of effects is ahead of Redis' own
	Ready                                          bool  // the Redis takes writes
}

// Values of Result.Status.
const (
	Applied   = "applied"
	Part      = "part" // kept until the other parts have come
	Duplicate = "duplicate"
	Gap       = "gap" // effects are missing before it; nothing was changed
)

// Apply applies a message, whose id in its topic is kept beside the cursor.
func (l *Lane) Apply(ctx context.Context, h *message.Header, payload []byte, id string) (Result, error) {
	part := ""
	if h.Parts > 1 {
		part = fmt.Sprintf("%d/%d", h.Part, h.Parts)
	}
	reply, err := l.call(ctx, "sonic_apply", h.Origin, h.Epoch, h.Prev.String(), h.Last.String(), part, id, payload).Slice()
	if err != nil {
		return Result{}, err
	}
	f := fields{values: reply}
	r := Result{Status: f.text(), Cursor: f.id(), CursorMessage: f.text()}
	for _, n := range []*int64{&r.Entries, &r.Applied, &r.Lost, &r.Dead, &r.Diverged, &r.Wanted, &r.Ahead} {
		*n = f.number()
	}
	r.Ready = f.text() == "1"
	return r, f.fault("sonic_apply")
}

// Shipped notes that the topic has everything up to id, and removes it from the stream. published is how many of the published effects it has, -1 when
// that is not known.
func (l *Lane) Shipped(ctx context.Context, id message.ID, published int64) error {
	args := []any{id.String()}
	if published >= 0 {
		args = append(args, published)
	}
	return l.call(ctx, "sonic_shipped", args...).Err()
}

// ShippedTo returns how far Shipped was told that the topic is, by whichever process.
func (l *Lane) ShippedTo(ctx context.Context) (message.ID, error) {
	text, err := l.redis.HGet(ctx, script.KeysOf(l.cfg.Lane).Meta, "shipped").Result()
	if errors.Is(err, redis.Nil) {
		return message.ID{}, nil
	}
	if err != nil {
		return message.ID{}, err
	}
	return message.ParseID(text)
}

// Beat has the other zones hear of this one. [NotReady] is its error where the Redis was restarted.
func (l *Lane) Beat(ctx context.Context) error {
	if err := l.call(ctx, "sonic_beat").Err(); !errors.Is(err, redis.Nil) {
		return err
	}
	return nil // there is no other zone
}

// Prune makes one step of removing versions that no zone needs any more. It returns where to go on, "0" at the end of a round, and how many versions there
// are.
func (l *Lane) Prune(ctx context.Context, cursor string, count int) (next string, left int64, err error) {
	reply, err := l.call(ctx, "sonic_prune", cursor, count).Slice()
	if err != nil {
		return cursor, 0, err
	}
	f := fields{values: reply}
	next = f.text()
	_, _ = f.number(), f.number() // deleted, seen
	left = f.number()
	return next, left, f.fault("sonic_prune")
}

func (l *Lane) call(ctx context.Context, function string, args ...any) *redis.Cmd {
	return l.redis.Do(ctx, append([]any{"FCALL", function, 1, l.outbox}, args...)...)
}

// NotReady reports whether a function refused because no Sonic has opened the Redis since it started, or because it is older than it was.
func NotReady(err error) bool { return isReply(err, "SONICNOTREADY") }

// Older reports whether Open refused because the Redis is older than it was when it was looked at.
func Older(err error) bool { return isReply(err, "SONICOLDER") }

// Refused reports whether the library refused what it was given: trying again does not help.
func Refused(err error) bool {
	var reply redis.Error
	if !errors.As(err, &reply) {
		return false
	}
	text := reply.Error()
	for _, prefix := range []string{"LOADING", "READONLY", "MISCONF", "OOM", "MASTERDOWN", "BUSY", "NOREPLICAS", "SONICNOTREADY", "SONICOLDER", "SONICNEWER", "ERR max number of clients", "NOAUTH", "NOPERM", "WRONGPASS", "UNKILLABLE",
		"TRYAGAIN", "CLUSTERDOWN"} {
		if strings.HasPrefix(text, prefix) {
			return false
		}
	}
	return !strings.Contains(text, "Function not found")
}

func isReply(err error, prefix string) bool {
	var reply redis.Error
	return errors.As(err, &reply) && strings.HasPrefix(reply.Error(), prefix)
}

// stateOf reads the reply of sonic_look.
func stateOf(reply []any) (State, error) {
	s := State{Behind: map[string]message.ID{}, Cursors: map[string]Cursor{}}
	var errs []error
	for i := 0; i+1 < len(reply); i += 2 {
		name, _ := reply[i].(string)
		f := fields{values: reply[i+1 : i+2]}
		switch name {
		case "layout":
			s.Layout = int(f.number())
		case "zone":
			s.Zone = f.text()
		case "epoch":
			s.Epoch = f.number()
		case "last":
			s.Last = f.id()
		case "shipped":
			s.Shipped = f.id()
		case "opened":
			s.Opened = f.text() == "1"
		case "ready":
			s.Ready = f.text() == "1"
		case "behind":
			for b := f.list(); len(b.values) > 0; {
				zone := b.text()
				s.Behind[zone] = b.id()
				errs = append(errs, b.fault(name))
			}
		case "cursors":
			for c := f.list(); len(c.values) > 0; {
				zone := c.text()
				s.Cursors[zone] = Cursor{ID: c.id(), Message: c.text(), Epoch: c.number()}
				errs = append(errs, c.fault(name))
			}
		}
		errs = append(errs, f.fault(name))
	}
	return s, errors.Join(errs...)
}

// fields reads a reply's values one by one, and keeps the first fault.
type fields struct {
	values []any
	err    error
}

func (f *fields) next() any {
	if len(f.values) == 0 {
		f.err = errors.Join(f.err, errors.New("a value is missing"))
		return ""
	}
	v := f.values[0]
	f.values = f.values[1:]
	return v
}

func (f *fields) text() string {
	switch v := f.next().(type) {
	case string:
		return v
	case int64:
		return strconv.FormatInt(v, 10)
	default:
		f.err = errors.Join(f.err, fmt.Errorf("%T is no text", v))
		return ""
	}
}

func (f *fields) number() int64 {
	text := f.text()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		f.err = errors.Join(f.err, fmt.Errorf("%q is no number", text))
	}
	return n
}

func (f *fields) id() message.ID {
	id, err := message.ParseID(f.text())
	f.err = errors.Join(f.err, err)
	return id
}

func (f *fields) list() *fields {
	v := f.next()
	list, ok := v.([]any)
	if !ok {
		f.err = errors.Join(f.err, fmt.Errorf("%T is no list", v))
	}
	return &fields{values: list}
}

func (f *fields) fault(function string) error {
	if f.err == nil {
		return nil
	}
	return fmt.Errorf("the reply of %s %w: %w", function, errReply, f.err)
}

// errReply says that a function replied what this version does not know.
var errReply = errors.New("cannot be read")
