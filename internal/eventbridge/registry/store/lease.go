package store

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// writerLease is a period in which this store is the only writer, and has read everything that was
// written before.
type writerLease struct {
	publisher *messaging.Publisher
	since     time.Time
}

// ownedFor bounds how long changes of one store share an ownership: other instances wait meanwhile.
const ownedFor = time.Second

// publisherProfile makes each change a message of its own.
func publisherProfile() messaging.Profile {
	p := messaging.Business()
	p.Name, p.BatchRecords, p.Ownership, p.AckTimeout = "registry", 1, messaging.WaitForOwnership, 5*time.Second
	return p
}

// own makes the store the owner of the topic. When it returns, the store has read everything that
// was written before. Changes of this store own the topic one after the other; one that waits gets
// the lease of the one before, because becoming the owner takes most of a change's time. release
// ends the ownership.
func (s *Store) own(ctx context.Context) (*writerLease, error) {
	select {
	case lease := <-s.handOver:
		if lease.publisher.Owned().Err() == nil {
			return lease, nil
		}
		s.discard(lease.publisher, false)
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("other changes are under way: %w", context.Cause(ctx))
	}
	lease, err := s.becomeOwner(ctx)
	if err != nil {
		<-s.turn
	}
	return lease, err
}

// becomeOwner opens a publisher and stores a fence. It retries until ctx ends.
func (s *Store) becomeOwner(ctx context.Context) (*writerLease, error) {
	for {
		p, err := s.client.Publisher(ctx, s.topic, publisherProfile())
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

// fence stores a message and waits until this store's reader has read it. Messages of former owners
// are before the fence: the broker stores no message of theirs behind it. Reading to the present end
// of the topic instead would miss messages in flight.
func (s *Store) fence(ctx context.Context, p *messaging.Publisher) error {
	id := newID()
	m, err := (&record{Time: now()}).message(fenceKey, id, s.opts.Instance)
	if err != nil {
		return err
	}
	seen := s.expect(id)
	defer s.forget(id)
	if err := p.Publish(ctx, m); err != nil {
		return err
	}
	return s.await(ctx, seen)
}

// release ends the ownership, unless another change of this store waits for it. Then it goes on,
// but no longer than ownedFor, and not when broken is set: the outcome of a record is not known.
func (s *Store) release(lease *writerLease, broken bool) {
	if !broken && time.Since(lease.since) <= ownedFor {
		select {
		case s.handOver <- lease:
			return
		default: // no change waits
		}
	}
	s.discard(lease.publisher, !broken)
	<-s.turn
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

// newID returns a unique name: 130 random bits.
func newID() string { return strings.ToLower(rand.Text()) }

// newUID returns what distinguishes a subscriber from others of its name: 50 random bits, 10
// letters.
func newUID() string { return newID()[:10] }

// now returns the time with the precision that records have.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
