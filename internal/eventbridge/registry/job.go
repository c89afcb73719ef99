package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
)

// MaxJobBytes bounds what is kept of a subscriber's job.
const MaxJobBytes = 8 << 10

// SetJob keeps, for all instances and beyond the life of this one, what is to be known of the latest job of the subscriber that has this UID: JSON of at most [MaxJobBytes].
// The subscriber's revision stays. Of a subscriber that is no more nothing is kept, and that is no error.
func (s *Store) SetJob(ctx context.Context, bus, name, uid string, job json.RawMessage) error {
	if len(job) > MaxJobBytes || !json.Valid(job) {
		return fmt.Errorf("a job must be JSON of at most %d bytes, got %d", MaxJobBytes, len(job))
	}
	key := subscriberKey(bus, name)
	_, err := s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, _ := s.view(key)
		if sub := snapshot.Subscriber(bus, name); sub == nil || sub.UID != uid || bytes.Equal(known.job, job) {
			return nil, nil //nolint:nilnil // there is nothing to change
		}
		return s.again(key, func(r *record) { r.Job = job })
	})
	return err
}

// Job returns what [Store.SetJob] was given for a subscriber, nil when that was nothing.
func (s *Store) Job(bus, name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.contents.entries[subscriberKey(bus, name)]; e != nil && e.deleted.IsZero() {
		return e.job
	}
	return nil
}
