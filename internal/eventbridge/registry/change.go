package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// decide is called while this store is the only writer and has read all. It returns the record to store under the key, or nil
// when nothing has to be changed.
type decide func(ctx context.Context) (*record, error)

// change makes one change of the object that key stands for. It reports whether a record was stored; with an error it was not,
// unless that is [ErrUnknown].
//
// When Pulsar does not say whether a record was stored, the store becomes the owner again and reads to the end: the record is
// there by then or never will be, and then the change is decided anew.
func (s *Store) change(ctx context.Context, key string, decide decide) (stored bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.life, func() { cancel(ErrClosed) })()
	begin := time.Now()
	defer func() { s.opts.Metrics.changed(stored, err, time.Since(begin)) }()

	id := newID()
	seen := s.expect(id)
	defer s.forget(id)
	doubt := error(nil) // why it is not known whether the record was stored
	for {
		switch {
		case doubt != nil:
		case s.life.Err() != nil:
			return false, ErrClosed
		case ctx.Err() != nil:
			return false, undecided(nil, context.Cause(ctx))
		}
		owned, err := s.own(ctx)
		if has(seen) {
			if err == nil {
				s.release(false)
			}
			return true, nil
		}
		if err != nil {
			return false, undecided(doubt, err)
		}
		stored, doubt, err = s.changeOwned(ctx, owned, key, id, seen, decide)
		if doubt == nil {
			return stored, err
		}
		pause(ctx, 50*time.Millisecond)
	}
}

// has reports whether the reader has what is expected.
func has(seen <-chan struct{}) bool {
	select {
	case <-seen:
		return true
	default:
		return false
	}
}

// changeOwned is change for the owner. doubt is set when it is not known whether the record was stored.
func (s *Store) changeOwned(ctx context.Context, owned *ownership, key, id string, seen <-chan struct{}, decide decide) (stored bool, doubt, err error) {
	broken := false
	defer func() { s.release(broken) }()
	r, err := s.decide(ctx, decide)
	if err != nil || r == nil {
		return false, nil, err
	}
	r.Format, r.Change, r.By = formatVersion, id, s.opts.Instance
	m, err := r.message(key)
	if err == nil {
		err = s.fits(key, len(m.Payload))
	}
	if err != nil {
		return false, nil, err
	}
	if err := ctx.Err(); err != nil {
		return false, nil, undecided(nil, context.Cause(ctx))
	}
	if err := owned.publisher.Publish(ctx, m); err != nil {
		broken = true
		if errors.Is(err, messaging.ErrTooLarge) || errors.Is(err, messaging.ErrTopicTerminated) {
			return false, nil, undecided(nil, err)
		}
		return false, err, nil
	}
	// It is stored, whatever happens now. The next owner needs a reader that has it.
	broken = s.await(ctx, seen) != nil
	return true, nil, nil
}

// decide calls f, unless the registry is one that this version must not change.
func (s *Store) decide(ctx context.Context, f decide) (*record, error) {
	s.mu.Lock()
	newer := s.contents.newer > 0
	s.mu.Unlock()
	if newer {
		return nil, ErrNewer
	}
	return f(ctx)
}

// fits says whether there is room for a record of that size. One that is not larger than what it replaces always has room.
func (s *Store) fits(key string, size int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := 0
	if e := s.contents.entries[key]; e != nil {
		old = e.bytes
	}
	return fits(s.contents.bytes+size-old, size, old)
}

func fits(all, size, old int) error {
	if all > MaxBytes && size > old {
		return &Invalid{Faults: []Fault{{Problem: fmt.Sprintf("the registry would have %d bytes, and can have %d", all, MaxBytes)}}}
	}
	return nil
}

// undecided is the error of a change that did not come to its end.
func undecided(doubt, err error) error {
	switch {
	case doubt != nil:
		return fmt.Errorf("%w: %w", ErrUnknown, doubt)
	case errors.Is(err, ErrClosed), errors.Is(err, messaging.ErrClosed):
		return ErrClosed
	default:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
}

// view is what the registry has, for a decision.
func (s *Store) view(key string) (*Snapshot, *entry, int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.contents.snapshot, s.contents.entries[key], s.contents.snapshot.revision + 1
}
