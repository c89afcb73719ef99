// Package outbox stores what the zone's Redis did in the zone's topic: it reads the stream of effects, packs them into messages, stores
// these in the stream's order, and trims the stream behind them.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/sonic/lane"
	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/retry"
	"github.com/aviaryhq/aviary/internal/trouble"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Config says what to ship.
type Config struct {
	Zone  string
	Lane  int
	Topic string // of the zone and lane
	// Alone says that there is no other zone: nothing can differ from this Redis.
	Alone bool
	// Config is told to the other zones in each message: see [message.Config].
	Config string
	// Off says that effects are published in place of being appended to the stream: this process holds them in memory until they are stored.
	Off bool
}

// Shipper ships one lane of a zone. Of several, in one process or in many, one works at a time: the one that owns the topic. The others
// wait for their turn. All methods are safe for concurrent use.
type Shipper struct {
	cfg     Config
	redis   *redis.Client
	lane    *lane.Lane
	client  *messaging.Client
	log     *zap.Logger
	metrics *Metrics
	trouble *trouble.State
	stored  func(id message.ID) // told what the topic has
	held    *queue              // with Off: what was received and is not stored, over all sessions

	mu     sync.Mutex
	status Status
}

// Status is what a shipper is doing.
type Status struct {
	// Owner says that this process ships; otherwise another has the topic, or it cannot be opened.
	Owner bool
	// Stored is the last effect that the topic is known to have.
	Stored message.ID
	Epoch  int64
	// Held is how many effects wait in the memory of this process, with Off.
	Held int
}

// New makes a shipper. stored is called with each id that the topic has, in their order.
func New(cfg Config, db *redis.Client, l *lane.Lane, client *messaging.Client, log *zap.Logger, m *Metrics, stored func(message.ID)) *Shipper {
	log = log.Named("outbox").With(zap.Int("lane", cfg.Lane))
	return &Shipper{cfg: cfg, redis: db, lane: l, client: client, log: log, metrics: m, trouble: trouble.New(log), stored: stored, held: newQueue()}
}

// Status returns what the shipper is doing.
func (s *Shipper) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	status := s.status
	status.Held = s.held.count()
	return status
}

// Trouble says why nothing is being shipped at present; nil when it is, or when another process does.
func (s *Shipper) Trouble() error { return s.trouble.Current() }

// Run ships until ctx ends. What the network, Redis and Pulsar do is no error: it tries again. An error says that trying does not help.
func (s *Shipper) Run(ctx context.Context) error {
	var pause retry.Pause
	for ctx.Err() == nil {
		began := time.Now()
		err := s.turn(ctx)
		switch {
		case ctx.Err() != nil: // that is why it ended
		case final(err):
			return err
		default:
			s.trouble.Note(err)
			pause.Held(time.Since(began))
			pause.Wait(ctx)
		}
	}
	return nil
}

// turn waits for this process' turn, and ships while it lasts.
func (s *Shipper) turn(ctx context.Context) error {
	w, err := s.own(ctx)
	if err != nil {
		return err
	}
	defer s.release(w)
	return s.ship(ctx, w)
}

// final reports whether trying again does not help.
func final(err error) bool {
	return errors.Is(err, message.ErrNewer) || errors.Is(err, message.ErrForeign) || errors.Is(err, messaging.ErrTopicTerminated) ||
		errors.Is(err, messaging.ErrInvalidTopic) || errors.Is(err, ErrState)
}

// ErrState says that what a Redis holds is not what this Sonic can go on from.
var ErrState = errors.New("this Redis cannot be used")

// own waits until this process is the only one that writes the topic.
func (s *Shipper) own(ctx context.Context) (*messaging.EntryWriter, error) {
	w, err := s.client.EntryWriter(ctx, s.cfg.Topic, messaging.EntryWriterConfig{
		Name: fmt.Sprintf("sonic-%s-%d", s.cfg.Zone, s.cfg.Lane), Label: "sonic", Replicated: true,
		Position: func(d *messaging.Delivery) (int64, error) {
			h, err := message.ParseHeader(d.Properties)
			if err != nil {
				return 0, fmt.Errorf("the last message of %s: %w", s.cfg.Topic, err)
			}
			if h.Origin != s.cfg.Zone || h.Lane != s.cfg.Lane {
				return 0, fmt.Errorf("the last message of %s: %w: it is of lane %d of zone %s", s.cfg.Topic, message.ErrForeign, h.Lane, h.Origin)
			}
			return h.Position, nil
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open the topic: %w", err)
	}
	return w, nil
}

// closeTimeout bounds how long the topic is held on to when it is given up.
const closeTimeout = 5 * time.Second

func (s *Shipper) release(w *messaging.EntryWriter) {
	s.mu.Lock()
	s.status.Owner = false
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	if err := w.Close(ctx); err != nil {
		s.log.Warn("cannot give the topic up cleanly", zap.Error(err))
	}
}

// ship ships until ctx or the ownership ends, over as many connections to Redis as it takes.
func (s *Shipper) ship(ctx context.Context, w *messaging.EntryWriter) error {
	t, err := tailOf(w.Last())
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.status.Owner = true
	s.mu.Unlock()
	s.log.Info("owning the topic", zap.String("topic", w.Topic()), zap.Stringer("stored", t.Last))
	// What is being stored at a stop has some time to become so: otherwise the next owner has to find out.
	storing, give := context.WithCancel(context.WithoutCancel(ctx))
	defer give()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, give) })()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(w.Context(), func() { cancel(&writerError{context.Cause(w.Context())}) })()

	l := &loader{Shipper: s, writer: w, storing: storing, packer: message.Packer{Origin: s.cfg.Zone, Lane: s.cfg.Lane, Config: s.cfg.Config, Tail: t}, fresh: true, one: true}
	var pause retry.Pause
	for {
		began := time.Now()
		err := l.session(ctx)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		var lost *writerError
		if final(err) || errors.As(err, &lost) {
			return err
		}
		s.trouble.Note(err)
		pause.Held(time.Since(began))
		pause.Wait(ctx)
	}
}

// writerError is an error of the topic's writer: it must be opened again.
type writerError struct{ err error }

func (e *writerError) Error() string { return e.err.Error() }
func (e *writerError) Unwrap() error { return e.err }

// loader ships while one writer has the topic.
type loader struct {
	*Shipper
	writer  *messaging.EntryWriter
	storing context.Context
	packer  message.Packer // its tail is what is stored
	fresh   bool           // the tail was read when the writer opened, and no session has used it
	// one: the next message is a single entry. So is a writer's first. What a predecessor has sent may be stored after the topic's end was read;
	// then the broker takes this message for a duplicate by its position, and so it must hold nothing that the predecessor's does not.
	one   bool
	skips atomic.Bool // with Off: Redis drops effects
}

// session ships what one connection to Redis brings.
func (l *loader) session(ctx context.Context) error {
	if l.fresh {
		if err := l.update(ctx); err != nil {
			return err
		}
	}
	var live *subscription
	if l.cfg.Off {
		// Before Redis is opened: from then on it is known whether anybody listens.
		var err error
		if live, err = subscribe(ctx, l.redis.Options(), l.lane.Channel()); err != nil {
			return err
		}
		defer live.close()
	}
	begin, err := l.prepare(ctx)
	switch {
	case err != nil:
	case l.cfg.Off:
		err = l.forget(ctx) // before any of it is stored
	default:
		err = l.missed(ctx)
	}
	if err != nil {
		if l.cfg.Off {
			l.hear(ctx, live)
		}
		return err
	}
	l.trouble.Note(nil)
	l.note(begin)
	q := newQueue()
	if l.cfg.Off {
		q = l.held
	}
	trim := newTrimmer(l.lane)
	group, running := errgroup.WithContext(ctx)
	more := running // until then there may be more to store
	if l.cfg.Off {
		hearing, heard := context.WithCancel(context.WithoutCancel(ctx))
		more = hearing
		begin = l.behindHeld(begin) // before any of it is taken to be stored
		group.Go(func() error {
			defer heard()
			return l.listen(running, live, begin)
		})
	} else {
		group.Go(func() error { return l.read(running, begin, q) })
	}
	group.Go(func() error { return l.resend(running) })
	group.Go(func() error { return l.store(more, q, trim) })
	group.Go(func() error { return trim.run(running) })
	group.Go(func() error { return l.beat(running) })
	group.Go(func() error { return l.prune(running) })
	err = group.Wait()
	if l.cfg.Off {
		trim.end(ctx)
	}
	return err
}

// note tells how far the topic is.
func (s *Shipper) note(id message.ID) {
	s.mu.Lock()
	s.status.Stored = id
	s.mu.Unlock()
	s.stored(id)
}

// store stores what is read, one message behind the other. While one is under way the next gathers. Once ctx has ended it stores what is left.
func (l *loader) store(ctx context.Context, q *queue, trim *trimmer) error {
	var last time.Time
	for {
		entries, err := q.take(ctx, l.one)
		if err != nil {
			return nil //nolint:nilerr // why the session ends others say
		}
		began, bytes := time.Now(), sizeOf(entries)
		if err := l.storeOne(entries); err != nil {
			q.putBack(entries)
			return err
		}
		end := l.packer.Tail.Last
		trim.behind(end, q.published(end))
		if l.cfg.Off { // else reading keeps the distance
			space(ctx, q, began, bytes, began.Sub(last))
		}
		last = began
	}
}

// storeOne stores the entries of one message.
func (l *loader) storeOne(entries []message.Entry) error {
	records, ends, err := l.pack(entries)
	if err != nil {
		return err
	}
	began := time.Now()
	for _, r := range records {
		if err := l.writer.Store(l.storing, r); err != nil {
			return &writerError{fmt.Errorf("cannot store effects: %w", err)}
		}
	}
	l.metrics.stored(entries, records, time.Since(began))
	l.packer.Tail, l.one = ends, false
	l.note(ends.Last)
	return nil
}

// beatEvery is how often the other zones hear of this one, whatever it writes.
const beatEvery = time.Second

// beat has the other zones hear of this one. It also finds a Redis that was restarted: it is not ready then, and is opened again.
func (l *loader) beat(ctx context.Context) error {
	ticker := time.NewTicker(beatEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if err := l.lane.Beat(ctx); err != nil {
			return fmt.Errorf("cannot beat: %w", err)
		}
	}
}

func (s *Shipper) setEpoch(epoch int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Epoch = epoch
}
