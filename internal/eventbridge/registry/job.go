package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// MaxJobBytes bounds what is kept of a subscriber's job.
const MaxJobBytes = 8 << 10

// ChangeJob changes what is kept, for all instances and beyond the life of this one, of the latest job of the subscriber that has this UID: JSON of at most
// [MaxJobBytes]. change is given what is kept (nil: nothing) and returns what is to be (nil: that stays). It is called while no other instance changes
// anything, perhaps several times; its error is the answer. The subscriber's revision stays. Without the subscriber the error is [ErrNotFound].
func (s *Store) ChangeJob(ctx context.Context, bus, name, uid string, change func(was json.RawMessage) (json.RawMessage, error)) error {
	key := subscriberKey(bus, name)
	_, err := s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, _ := s.view(key)
		if sub := snapshot.Subscriber(bus, name); sub == nil || sub.UID != uid {
			return nil, fmt.Errorf("%w: there is no subscriber %s any more", ErrNotFound, quote(name))
		}
		job, err := change(known.job)
		switch {
		case err != nil:
			return nil, err
		case job == nil || bytes.Equal(known.job, job):
			return nil, nil //nolint:nilnil // there is nothing to change
		case len(job) > MaxJobBytes || !json.Valid(job):
			return nil, fmt.Errorf("a job must be JSON of at most %d bytes, got %d", MaxJobBytes, len(job))
		}
		return s.again(key, func(r *record) { r.Job = job })
	})
	return err
}

// Job returns what is kept of a subscriber's job, nil when that is nothing.
func (s *Store) Job(bus, name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.contents.entries[subscriberKey(bus, name)]; e != nil && e.deleted.IsZero() {
		return e.job
	}
	return nil
}
