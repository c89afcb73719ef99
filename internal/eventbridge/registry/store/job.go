package store

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// MaxJobBytes bounds the stored state of a subscriber's job.
const MaxJobBytes = 8 << 10

// ChangeJob changes the stored state of the subscriber's latest job: JSON of at most [MaxJobBytes].
// All instances see it, and it outlives this instance. change gets the state (nil: none) and
// returns the new one (nil: no change). No other instance changes anything while change runs.
// ChangeJob may call it several times, and returns its error. The subscriber's revision stays the
// same. If no subscriber of that name has this UID, the error is [model.ErrNotFound].
func (s *Store) ChangeJob(ctx context.Context, bus, name, uid string, change func(was json.RawMessage) (json.RawMessage, error)) error {
	key := subscriberKey(bus, name)
	_, err := s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, _ := s.view(key)
		if sub := snapshot.Subscriber(bus, name); sub == nil || sub.UID != uid {
			return nil, fmt.Errorf("%w: there is no subscriber %s any more", model.ErrNotFound, model.Quote(name))
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
		r, err := s.currentRecord(key)
		if err == nil {
			r.Job = job
		}
		return r, err
	})
	return err
}

// Job returns the stored state of a subscriber's latest job, nil if there is none.
func (s *Store) Job(bus, name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.contents.entries[subscriberKey(bus, name)]; e != nil && e.deleted.IsZero() {
		return e.job
	}
	return nil
}
