// Package registrytest stands in for the registry in tests of what looks at it.
package registrytest

import (
	"context"
	"encoding/json"
	"sync"
	"testing"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// Snapshot makes one of objects, with defaults, and fails the test when one is not valid.
func Snapshot(t testing.TB, revision int64, buses []registry.Bus, subscribers []registry.Subscriber) *registry.Snapshot {
	t.Helper()
	s, err := registry.NewSnapshot(revision, buses, subscribers)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Store shows the snapshots that it is given, as a registry.Store does those that it reads. It is safe for concurrent use.
type Store struct {
	mu       sync.Mutex
	now      *registry.Snapshot
	watchers map[*watcher]struct{}
	jobs     map[string]json.RawMessage // by UID
}

// watcher calls f for one snapshot after the other.
type watcher struct {
	f    func(*registry.Snapshot)
	busy sync.Mutex
}

// NewStore makes one that shows s.
func NewStore(s *registry.Snapshot) *Store {
	return &Store{now: s, watchers: make(map[*watcher]struct{}), jobs: make(map[string]json.RawMessage)}
}

// Snapshot returns the present one.
func (s *Store) Snapshot() *registry.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.now
}

// Set makes a snapshot the present one. Watchers have been called when it returns.
func (s *Store) Set(now *registry.Snapshot) {
	s.mu.Lock()
	s.now = now
	all := make([]*watcher, 0, len(s.watchers))
	for w := range s.watchers {
		all = append(all, w)
	}
	s.mu.Unlock()
	for _, w := range all {
		w.call(s)
	}
}

// Watch calls f for the present snapshot, before it returns, and for each that is set.
func (s *Store) Watch(f func(*registry.Snapshot)) (stop func()) {
	w := &watcher{f: f}
	s.mu.Lock()
	s.watchers[w] = struct{}{}
	s.mu.Unlock()
	w.call(s)
	return func() {
		s.mu.Lock()
		delete(s.watchers, w)
		s.mu.Unlock()
		w.busy.Lock() // a call that runs ends first
		defer w.busy.Unlock()
	}
}

func (w *watcher) call(s *Store) {
	w.busy.Lock()
	defer w.busy.Unlock()
	w.f(s.Snapshot())
}

// Job returns what is kept of a subscriber's job.
func (s *Store) Job(bus, name string) json.RawMessage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.now.Subscriber(bus, name); sub != nil {
		return s.jobs[sub.UID]
	}
	return nil
}

// ChangeJob changes what is kept of a subscriber's job.
func (s *Store) ChangeJob(_ context.Context, bus, name, uid string, change func(json.RawMessage) (json.RawMessage, error)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sub := s.now.Subscriber(bus, name); sub == nil || sub.UID != uid {
		return registry.ErrNotFound
	}
	job, err := change(s.jobs[uid])
	if err == nil && job != nil {
		s.jobs[uid] = job
	}
	return err
}
