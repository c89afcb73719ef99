package store

import (
	"context"
	"crypto/rand"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// leaseQueue lets this store's changes own the topic one after the other. Changes that wait at the same
// time share one ownership, because becoming the owner takes most of a change's time.
type leaseQueue struct {
	turn    chan struct{} // holds one element while a change has its turn
	waiting atomic.Int64  // the number of changes that wait for their turn
	now     *writerLease  // nil: this store does not own the topic. Only the change that has its turn may use it
}

// writerLease is a period in which this store is the only writer, and has read everything that was
// written before.
type writerLease struct {
	publisher *messaging.Publisher
	since     time.Time
}

// ownedFor bounds how long changes of one store share an ownership: other instances wait meanwhile.
const ownedFor = time.Second

// changes is the profile of the publisher. Each change is a message of its own.
func changes() messaging.Profile {
	p := messaging.Business()
	p.Name, p.BatchRecords, p.Ownership, p.AckTimeout = "registry", 1, messaging.WaitForOwnership, 5*time.Second
	return p
}

// own waits for its turn and makes the store the owner of the topic. When it returns, the store has
// read everything that was written before. release ends the turn.
func (s *Store) own(ctx context.Context) (*writerLease, error) {
	o := &s.lease
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
		o.drop(s, false)
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

// becomeOwner opens a publisher and stores a fence. It retries until ctx ends.
func (s *Store) becomeOwner(ctx context.Context) (*writerLease, error) {
	for {
		p, err := s.client.Publisher(ctx, s.topic, changes())
		if err != nil {
			return nil, err
		}
		if err = s.fence(ctx, p); err == nil {
			return &writerLease{publisher: p, since: time.Now()}, nil
		}
		s.discard(p, false)
		if !sleep(ctx, 50*time.Millisecond) || errors.Is(err, messaging.ErrTopicTerminated) {
			return nil, err
		}
	}
}

// fence stores a message and waits until this store's reader has read it. What former owners had
// under way is before the fence: the broker stores nothing of theirs behind it. Reading to the
// present end of the topic instead would miss what is under way.
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

// release ends a change's turn. The ownership continues for other changes of this store that wait,
// unless broken is set or the ownership has lasted longer than ownedFor.
func (s *Store) release(broken bool) {
	o := &s.lease
	if broken || o.now != nil && time.Since(o.now.since) > ownedFor {
		o.drop(s, !broken)
	}
	<-o.turn
	o.closeIfIdle(s)
}

// closeIfIdle gives up the topic if no change of this store waits or has its turn. Every change
// calls it when it stops waiting and when it has ended its turn, so the last change gives the topic
// up.
func (o *leaseQueue) closeIfIdle(s *Store) {
	for o.waiting.Load() == 0 {
		select {
		case o.turn <- struct{}{}:
		default:
			return // a change has its turn, and calls closeIfIdle after it
		}
		o.drop(s, true)
		<-o.turn
		if o.waiting.Load() == 0 {
			return
		}
	}
}

// drop gives up the topic. The caller must have the turn. complete says that the outcome of every
// published record is known.
func (o *leaseQueue) drop(s *Store, complete bool) {
	if o.now != nil {
		s.discard(o.now.publisher, complete)
		o.now = nil
	}
}

// closeWithin bounds the closing of a publisher in the background.
const closeWithin = 5 * time.Second

// discard closes a publisher in the background. If outcomes of records are missing (complete is
// false), it does not wait for them: waiting would keep the topic.
func (s *Store) discard(p *messaging.Publisher, complete bool) {
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
		defer cancel()
		if !complete {
			cancel()
		}
		_ = p.Close(ctx) // callers of Publish know which records are not acknowledged
	})
}

// expect returns a channel that is closed once the reader has read the change with that ID.
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

// await waits until the reader has read the expected change.
func (s *Store) await(ctx context.Context, seen <-chan struct{}) error {
	select {
	case <-seen:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("this instance has not read back what it stored: %w", context.Cause(ctx))
	case <-s.life.Done():
		return model.ErrClosed
	}
}

// newID returns a unique name: 80 random bits.
func newID() string { return randomText(10) }

// newUID returns what distinguishes a subscriber from others of its name: 50 random bits, 10
// letters.
func newUID() string { return randomText(7)[:10] }

func randomText(bytes int) string {
	random := make([]byte, bytes)
	_, _ = rand.Read(random) // never fails
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(random))
}

// now returns the time with the precision that records have.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
