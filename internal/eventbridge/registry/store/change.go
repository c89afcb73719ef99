package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// decide returns the record to store under the key, or nil if nothing has to change. It runs while
// this store is the only writer and has read everything.
type decide func(ctx context.Context) (*record, error)

// change makes one change of the object with that key. It reports whether a record was stored.
// After an error none was stored, unless the error is [model.ErrUnknown].
//
// When Pulsar does not say whether it stored a record, the store becomes the owner again and reads
// to the end. By then the record is stored or never will be. If it is not stored, change decides
// again.
func (s *Store) change(ctx context.Context, key string, decide decide) (stored bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(model.ErrClosed) })()
	begin := time.Now()
	defer func() { s.opts.Metrics.changed(stored, err, time.Since(begin)) }()

	id := newID()
	seen := s.expect(id)
	defer s.forget(id)
	unknown := error(nil) // why it is not known whether the record was stored
	for {
		switch {
		case unknown != nil:
		case s.life.Err() != nil:
			return false, model.ErrClosed
		case ctx.Err() != nil:
			return false, undecided(nil, context.Cause(ctx))
		}
		lease, err := s.own(ctx)
		if has(seen) {
			if err == nil {
				s.release(lease, false)
			}
			return true, nil
		}
		if err != nil {
			return false, undecided(unknown, err)
		}
		stored, unknown, err = s.changeWithLease(ctx, lease, key, id, seen, decide)
		if unknown == nil {
			return stored, err
		}
		sleep(ctx, 50*time.Millisecond)
	}
}

// has reports whether the reader has read the expected change.
func has(seen <-chan struct{}) bool {
	select {
	case <-seen:
		return true
	default:
		return false
	}
}

// changeWithLease is change for the owner. unknown is set when it is not known whether the record was
// stored.
func (s *Store) changeWithLease(ctx context.Context, lease *writerLease, key, id string, seen <-chan struct{}, decide decide) (stored bool, unknown, err error) {
	broken := false
	defer func() { s.release(lease, broken) }()
	r, err := s.decide(ctx, decide)
	if err != nil || r == nil {
		return false, nil, err
	}
	m, err := r.message(key, id, s.opts.Instance)
	if err == nil {
		err = s.fits(key, len(m.Payload))
	}
	if err != nil {
		return false, nil, err
	}
	if err := ctx.Err(); err != nil {
		return false, nil, undecided(nil, context.Cause(ctx))
	}
	if err := lease.publisher.Publish(ctx, m); err != nil {
		broken = true
		if errors.Is(err, messaging.ErrTooLarge) || errors.Is(err, messaging.ErrTopicTerminated) {
			return false, nil, undecided(nil, err)
		}
		return false, err, nil
	}
	// The record is stored, whatever happens now. Without the reader having it, the ownership ends.
	broken = s.await(ctx, seen) != nil
	return true, nil, nil
}

// decide calls f, unless the registry has records of a newer format.
func (s *Store) decide(ctx context.Context, f decide) (*record, error) {
	s.mu.Lock()
	newer := s.contents.newer()
	s.mu.Unlock()
	if newer {
		return nil, model.ErrNewer
	}
	return f(ctx)
}

// fits returns an error if the registry has no room for a record of that size. A record that is not
// larger than the one it replaces always fits.
func (s *Store) fits(key string, size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := 0
	if e := s.contents.entries[key]; e != nil {
		old = e.bytes
	}
	return fits(s.contents.bytes()+size-old, size, old)
}

func fits(all, size, old int) error {
	if all > model.MaxBytes && size > old {
		return &model.Invalid{Faults: []model.Fault{{Problem: fmt.Sprintf("the registry would have %d bytes; the limit is %d", all, model.MaxBytes)}}}
	}
	return nil
}

// undecided is the error of a change that was not completed. unknown says that the record may be
// stored.
func undecided(unknown, err error) error {
	switch {
	case unknown != nil:
		return fmt.Errorf("%w: %w", model.ErrUnknown, unknown)
	case errors.Is(err, model.ErrClosed), errors.Is(err, messaging.ErrClosed):
		return model.ErrClosed
	default:
		return fmt.Errorf("%w: %w", model.ErrUnavailable, err)
	}
}

// view returns what a decision needs: the snapshot, the key's entry, and the next revision.
func (s *Store) view(key string) (*Snapshot, *entry, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contents.snapshot, s.contents.entries[key], s.contents.snapshot.revision + 1
}
