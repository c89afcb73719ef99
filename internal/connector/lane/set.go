package lane

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Config bounds a route's lanes.
type Config struct {
	// Messages and Bytes bound what a route has taken from its source and not stored
	// yet. Half of each is divided among the lanes, as what each may hold whatever others
	// do; from the other half a lane borrows, each at most as much as it leaves free: one
	// that is busy has much of what idle ones do not need, and one that is stuck leaves
	// some. A lane alone has all. One that holds nothing may always take one message,
	// however large. See [Set.SetBounds].
	Messages int
	Bytes    int64
	// CommitEvery is the interval at which the source is told what is stored.
	CommitEvery time.Duration
	// MinBackoff and MaxBackoff bound the wait before what failed is sent again,
	// which doubles from one failure to the next and is spread by up to 20 %.
	MinBackoff, MaxBackoff time.Duration
}

// longer is the wait after another failure.
func (c *Config) longer(wait time.Duration) time.Duration {
	return min(max(2*wait, c.MinBackoff), c.MaxBackoff)
}

// Route is what lanes need of the route that they belong to. All functions are safe
// for concurrent use.
type Route struct {
	Sink Sink
	// Prepare returns, for a new lane, the function that its messages pass in their
	// order, and one that is called when the lane is closed; nil for none.
	Prepare func() (prepare Prepare, closed func())
	// Dead stores a message that was refused; nil: the first refusal stops the route.
	// done is as that of Sink.Send. Several are under way at once, in no order.
	Dead func(ctx context.Context, to string, m *message.Message, reason error, done func(error))
	// Stop ends the route for good: err says why.
	Stop func(err error)
	// Report is told of trouble with the sink, and of its end when no lane has it any more: nil,
	// or ErrClosed when the last that had it did not get through, but has ended.
	Report func(err error)
	// ReportDead is told the same of dead letters; nil: nobody is.
	ReportDead func(err error)

	Log     *zap.Logger
	Metrics *RouteMetrics
}

// Prepare changes m and returns where it goes, and false when it goes nowhere. An
// error is ctx's, ErrLoop, or final and treated as a refusal.
type Prepare func(ctx context.Context, m *message.Message) (to string, keep bool, err error)

// Set is the lanes of one route. It is safe for concurrent use.
type Set struct {
	cfg   Config
	route Route

	mu     sync.Mutex
	lanes  map[*Lane]struct{}
	paused atomic.Pointer[chan struct{}] // closed on resuming; nil while not paused

	// The bounds, and what all lanes hold: what is a lane's own changes as lanes come, and
	// one may hold more than the new for a while.
	maxMessages, maxBytes atomic.Int64
	messages, bytes       atomic.Int64
	common                common

	sending, dead illness

	stored, filtered, refused, resent atomic.Int64
}

// NewSet makes a route's lanes; there are none yet.
func NewSet(cfg Config, route Route) *Set {
	s := &Set{
		cfg: cfg, route: route, lanes: map[*Lane]struct{}{},
		sending: illness{report: route.Report, lanes: map[*Lane]struct{}{}},
		dead:    illness{report: route.ReportDead, lanes: map[*Lane]struct{}{}},
	}
	s.maxMessages.Store(int64(cfg.Messages))
	s.maxBytes.Store(cfg.Bytes)
	return s
}

// SetBounds takes the place of what Config says of Messages and Bytes, for the lanes that
// there are, too. What they hold beyond smaller bounds they keep until it is stored.
func (s *Set) SetBounds(messages int, bytes int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.maxMessages.Store(int64(messages))
	s.maxBytes.Store(bytes)
	s.share()
}

// Bounds returns how many messages and bytes the lanes may hold together.
func (s *Set) Bounds() (messages int, bytes int64) {
	return int(s.maxMessages.Load()), s.maxBytes.Load()
}

// Option changes one lane.
type Option func(*Lane)

// CommitEach tells the source what is stored after n messages, too, however short the
// interval. For sources whose brokers send no more than they have not heard of.
func CommitEach(n int) Option { return func(l *Lane) { l.commitEach = n } }

// Open starts a lane for one partition of the source (or one consumer of a queue).
// commit is told the position up to which every message offered so far is stored or
// otherwise done with: positions as they were offered, ascending, from one goroutine
// at a time, about every commit interval, and never after Close or Abandon returned.
// After an error, which is logged, the next call has the same position or a higher one.
func (s *Set) Open(name string, commit func(position int64) error, options ...Option) *Lane {
	l := newLane(s, name, commit)
	for _, o := range options {
		o(l)
	}
	s.mu.Lock()
	s.lanes[l] = struct{}{}
	s.share()
	s.mu.Unlock()
	go l.run()
	return l
}

// share divides the bounds. s.mu is held.
func (s *Set) share() {
	n := int64(max(len(s.lanes), 1))
	all := amount{s.maxMessages.Load(), s.maxBytes.Load()}
	own := all
	if n > 1 {
		own = amount{max(all.messages/(2*n), 1), max(all.bytes/(2*n), 1)}
	}
	s.common.resize(amount{all.messages - n*own.messages, all.bytes - n*own.bytes})
	for l := range s.lanes {
		l.setOwn(own)
	}
}

func (s *Set) remove(l *Lane) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.lanes, l)
	s.common.forget(l)
	s.share()
}

// fits reports whether one more message of size would be within the bounds of all
// lanes together.
func (s *Set) fits(size int64) bool {
	return s.messages.Load() < s.maxMessages.Load() && s.bytes.Load()+size <= s.maxBytes.Load()
}

// release gives back what n messages held.
func (s *Set) release(n int, bytes int64) {
	s.messages.Add(-int64(n))
	s.bytes.Add(-bytes)
	s.common.wake()
}

// Pause makes Offer wait on every lane until Resume. What was taken goes on.
func (s *Set) Pause() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused.Load() == nil {
		c := make(chan struct{})
		s.paused.Store(&c)
	}
}

// Paused reports whether Offer waits for Resume.
func (s *Set) Paused() bool { return s.paused.Load() != nil }

// Resume ends Pause.
func (s *Set) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.paused.Swap(nil); c != nil {
		close(*c)
	}
}

// State is what a route's lanes hold and have done.
type State struct {
	Lanes    int
	InFlight int   // messages taken and not stored
	Bytes    int64 // of them
	// MaxInFlight and MaxBytes are their bounds.
	MaxInFlight int
	MaxBytes    int64
	// Oldest is how long ago the source's broker stored the oldest of them (or, where
	// it does not say, this process received it).
	Oldest                            time.Duration
	Stored, Filtered, Refused, Resent int64
	Paused                            bool
}

// State looks at all lanes.
func (s *Set) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := State{
		Lanes: len(s.lanes), Paused: s.Paused(), MaxInFlight: int(s.maxMessages.Load()), MaxBytes: s.maxBytes.Load(),
		Stored: s.stored.Load(), Filtered: s.filtered.Load(), Refused: s.refused.Load(), Resent: s.resent.Load(),
	}
	now := time.Now()
	for l := range s.lanes {
		n, bytes, since := l.holding()
		st.InFlight += n
		st.Bytes += bytes
		if !since.IsZero() {
			st.Oldest = max(st.Oldest, now.Sub(since))
		}
	}
	return st
}
