package store

import (
	"context"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// CleanUp does at once what Run does each minute.
func (s *Store) CleanUp(ctx context.Context) error { return s.cleanUpOnce(ctx) }

// CompactNow compacts whether it is worth it or not.
func (s *Store) CompactNow(ctx context.Context) error {
	s.mu.Lock()
	s.contents.replaced = 1 << 30
	s.mu.Unlock()
	return s.compact(ctx)
}

// PurgeAt purges as at another time, and returns how many deletions went.
func (s *Store) PurgeAt(ctx context.Context, t *testing.T, at time.Time) int {
	t.Helper()
	before := len(s.oldDeletions(at))
	if err := s.purge(ctx, at); err != nil {
		t.Fatal(err)
	}
	return before
}

// Entries is the number of keys that the topic has.
func (s *Store) Entries() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.contents.entries)
}

// ReadSubscriber reads a message of the topic.
func ReadSubscriber(t *testing.T, d *messaging.Delivery) (s model.Subscriber, revision int64) {
	t.Helper()
	r, err := readRecord(d)
	if err == nil {
		err = r.get(d.Key, &s, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s, r.Revision
}

// Weigh adds to what the records are taken to have together.
func (s *Store) Weigh(bytes int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.contents.entries["sub/weight/weight"] = &entry{bytes: bytes}
}
