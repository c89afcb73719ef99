// Package storetest provides a store of snapshots for tests. It imports registry/model and
// registry/store.
package storetest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// Snapshot makes a snapshot of objects, with defaults. It fails the test when one is not valid.
func Snapshot(t testing.TB, revision int64, buses []model.Bus, subscribers []model.Subscriber) *store.Snapshot {
	t.Helper()
	s, err := store.NewSnapshot(revision, buses, subscribers)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Store shows the snapshots that a test sets, as a store.Store shows those that it reads. It is
// safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	now      *store.Snapshot
	watchers map[*watcher]struct{}
	jobs     map[string]json.RawMessage // by UID
}

// watcher calls f with one snapshot after the other.
type watcher struct {
	f    func(*store.Snapshot)
	busy sync.Mutex
}

// NewStore makes a store that shows s.
func NewStore(s *store.Snapshot) *Store {
	return &Store{now: s, watchers: make(map[*watcher]struct{}), jobs: make(map[string]json.RawMessage)}
}

// Snapshot returns the current snapshot.
func (s *Store) Snapshot() *store.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Set makes a snapshot the current one. When it returns, all watchers have been called.
func (s *Store) Set(now *store.Snapshot) {
	s.mu.Lock()
	s.now = now
	s.mu.Unlock()
	s.callWatchers()
}

func (s *Store) callWatchers() {
	s.mu.Lock()
	all := make([]*watcher, 0, len(s.watchers))
	for w := range s.watchers {
		all = append(all, w)
	}
	s.mu.Unlock()
	for _, w := range all {
		w.call(s)
	}
}

// Watch calls f with the current snapshot before it returns, and with each one that is set later.
func (s *Store) Watch(f func(*store.Snapshot)) (stop func()) {
	w := &watcher{f: f}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	w.call(s)
	return func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
		w.busy.Lock() // wait for a running call
		defer w.busy.Unlock()
	}
}

func (w *watcher) call(s *Store) {
	w.busy.Lock()
	defer w.busy.Unlock()
	w.f(s.Snapshot())
}

// Job returns the stored state of a subscriber's job.
func (s *Store) Job(bus, name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.now.Subscriber(bus, name); sub != nil {
		return s.jobs[sub.UID]
	}
	return nil
}

// ChangeJob changes the stored state of a subscriber's job. When it returns, all watchers have been
// called.
func (s *Store) ChangeJob(_ context.Context, bus, name, uid string, change func(json.RawMessage) (json.RawMessage, error)) error {
	err := s.changeJob(bus, name, uid, change)
	s.callWatchers()
	return err
}

func (s *Store) changeJob(bus, name, uid string, change func(json.RawMessage) (json.RawMessage, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.now.Subscriber(bus, name); sub == nil || sub.UID != uid {
		return model.ErrNotFound
	}
	job, err := change(s.jobs[uid])
	if err == nil && job != nil {
		s.jobs[uid] = job
	}
	return err
}

// Faults returns the faults of err as "pointer: problem", sorted.
func Faults(t testing.TB, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var invalid *model.Invalid
	require.ErrorAs(t, err, &invalid)
	var all []string
	for _, f := range invalid.Faults {
		all = append(all, f.Pointer+": "+f.Problem)
	}
	slices.Sort(all)
	return all
}
