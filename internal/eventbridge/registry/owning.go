package registry

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// owning gives this store's changes their turn to own the topic. Changes that wait for one another share one ownership: most
// of a change's time is taken by becoming the owner.
type owning struct {
	turn    chan struct{} // holds one while a change has its turn
	waiting atomic.Int64  // changes that wait for theirs
	now     *ownership    // nil: the topic is not owned. For whoever has the turn
}

// ownership is the time in which this store is the only writer, and has read all that was written before.
type ownership struct {
	publisher *messaging.Publisher
	since     time.Time
}

// ownedFor bounds the time for which changes of one store keep the topic while others wait.
const ownedFor = time.Second

// changes is the profile of writers. Each change is a message of its own.
func changes() messaging.Profile {
	p := messaging.Durable()
	p.Name, p.BatchRecords, p.Ownership, p.AckTimeout = "registry", 1, messaging.WaitForOwnership, 5*time.Second
	return p
}

// own waits for its turn and makes the store the owner of the topic, which release ends. All that was written before has been
// read then.
func (s *Store) own(ctx context.Context) (*ownership, error) {
	o := &s.owning
	o.waiting.Add(1)
	select {
	case o.turn <- struct{}{}:
		o.waiting.Add(-1)
	case <-ctx.Done():
		o.waiting.Add(-1)
		o.closeIfIdle(s)
		return nil, fmt.Errorf("other changes are under way: %w", context.Cause(ctx))
	}
	if o.now != nil && o.now.publisher.Owned().Err() != nil {
		o.drop(s)
	}
	if o.now != nil {
		return o.now, nil
	}
	now, err := s.becomeOwner(ctx)
	if err != nil {
		<-o.turn
		o.closeIfIdle(s)
		return nil, err
	}
	o.now = now
	return now, nil
}

// becomeOwner tries until ctx ends.
func (s *Store) becomeOwner(ctx context.Context) (*ownership, error) {
	for {
		p, err := s.client.Publisher(ctx, s.topic, changes())
		if err != nil {
			return nil, err
		}
		if err = s.fence(ctx, p); err == nil {
			return &ownership{publisher: p, since: time.Now()}, nil
		}
		s.discard(p)
		if !pause(ctx, 50*time.Millisecond) || errors.Is(err, messaging.ErrTopicTerminated) {
			return nil, err
		}
	}
}

// fence stores a message and waits until the own reader has it. The broker stores nothing of a former owner behind it, and
// what a former owner had under way is before it: asking for the end of the topic would miss that.
func (s *Store) fence(ctx context.Context, p *messaging.Publisher) error {
	r := record{Format: formatVersion, Change: newID(), Time: now(), By: s.opts.Instance}
	m, err := r.message(fenceKey)
	if err != nil {
		return err
	}
	seen := s.expect(r.Change)
	defer s.forget(r.Change)
	if err := p.Publish(ctx, m); err != nil {
		return err
	}
	return s.await(ctx, seen)
}

// release ends a change's turn. The ownership goes on when other changes of this store wait for theirs, unless broken is set
// or it has lasted long enough.
func (s *Store) release(broken bool) {
	o := &s.owning
	if broken || o.now != nil && time.Since(o.now.since) > ownedFor {
		o.drop(s)
	}
	<-o.turn
	o.closeIfIdle(s)
}

// closeIfIdle gives the topic up when no change of this store waits or has its turn. Whoever stops waiting, and whoever has
// ended his turn, calls it: the later of them finds nobody.
func (o *owning) closeIfIdle(s *Store) {
	for o.waiting.Load() == 0 {
		select {
		case o.turn <- struct{}{}:
		default:
			return // somebody has his turn, and ends it after this
		}
		o.drop(s)
		<-o.turn
		if o.waiting.Load() == 0 {
			return
		}
	}
}

// drop gives the topic up. The caller has the turn.
func (o *owning) drop(s *Store) {
	if o.now != nil {
		s.discard(o.now.publisher)
		o.now = nil
	}
}

// discard closes a publisher behind the caller's back. All that it was given has its outcome, or will not get one.
func (s *Store) discard(p *messaging.Publisher) {
	s.running.Go(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		_ = p.Close(ended) // what is not acknowledged was told to whoever published it
	})
}

// expect returns a channel that is closed once the reader has the change of that name.
func (s *Store) expect(change string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := make(chan struct{})
	s.expected[change] = seen
	return seen
}

func (s *Store) forget(change string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.expected, change)
}

// await waits until the reader has what is expected.
func (s *Store) await(ctx context.Context, seen <-chan struct{}) error {
	select {
	case <-seen:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("this instance does not read what it stored: %w", context.Cause(ctx))
	case <-s.life.Done():
		return ErrClosed
	}
}

// newID is a name that nothing else has: 80 random bits.
func newID() string { return randomText(10) }

// newUID tells a subscriber from others of its name: 50 random bits, 10 letters.
func newUID() string { return randomText(7)[:10] }

func randomText(bytes int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random))
}

// now has the precision that records keep.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
