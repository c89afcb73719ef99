package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

const (
	tidyEvery = time.Minute
	// keepDeletions is how long the record of a deletion is kept. An instance may be cut off from
	// Pulsar for as long and still learn of the deletion, even if the topic was compacted
	// meanwhile.
	keepDeletions = 7 * 24 * time.Hour
	// purgeAtLeast is the number of old deletions that are worth a purge.
	purgeAtLeast = 100
	// compactAbove is the number of replaced records that are worth a compaction, if there are also
	// more of them than of keys.
	compactAbove = 1000
)

// tidySoon wakes tidy.
func (s *Store) tidySoon() {
	select {
	case s.tidyNow <- struct{}{}:
	default:
	}
}

// tidy removes the topics of deleted objects and old records of deletions, and has the broker
// compact the topic. Each instance does so at its own times. What one instance has done, the others
// need not do.
func (s *Store) tidy(ctx context.Context) {
	warned := false
	for wait := tidyEvery; ; wait = tidyEvery {
		err := s.tidyOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil && !errors.Is(err, model.ErrInUse) && !warned:
			s.log.Warn("cannot remove the topics and records of deleted objects, will keep trying", zap.Error(err))
			warned = true
		case err == nil:
			warned = false
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-s.tidyNow:
			t.Stop()
			// The clients of a deleted object's topics stop within moments.
			if !sleep(ctx, 2*time.Second) {
				return
			}
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

func (s *Store) tidyOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, tidyEvery)
	defer cancel()
	return errors.Join(s.removeFormer(ctx), s.purge(ctx, time.Now()), s.compact(ctx))
}

// removeFormer removes the topics of deleted objects.
func (s *Store) removeFormer(ctx context.Context) (err error) {
	if s.opts.Pulsar == nil {
		return nil
	}
	s.mu.Lock()
	var keys []string
	for key, e := range s.contents.entries {
		if len(e.former) > 0 {
			keys = append(keys, key)
		}
	}
	s.mu.Unlock()
	slices.Sort(keys)
	for _, key := range keys {
		if ctx.Err() != nil {
			break
		}
		err = errors.Join(err, s.removeFormerOf(ctx, key))
	}
	return err
}

func (s *Store) removeFormerOf(ctx context.Context, key string) error {
	bus, name, _ := cutKey(key)
	_, known, _ := s.view(key)
	if known == nil {
		return nil
	}
	deleted := make(map[string]bool)
	var failed error
	if name != "" { // a UID is used once: no subscriber can begin to use these topics
		for _, uid := range known.former {
			err := s.opts.Pulsar.RemoveSubscriber(ctx, bus, name, uid)
			failed = errors.Join(failed, err)
			deleted[uid] = err == nil
		}
		if !slices.Contains(slices.Collect(maps.Values(deleted)), true) {
			return failed
		}
	}
	_, err := s.change(ctx, key, func(ctx context.Context) (*record, error) {
		snapshot, known, _ := s.view(key)
		if known == nil || len(known.former) == 0 {
			return nil, nil //nolint:nilnil // another instance has done it
		}
		if name == "" {
			if snapshot.Bus(bus) != nil { // the topic belongs to the new bus
				deleted[""] = true
			} else if err := s.opts.Pulsar.RemoveBus(ctx, bus); err != nil {
				return nil, err
			} else {
				deleted[""] = true
			}
		}
		return s.again(key, func(r *record) {
			r.Former = slices.DeleteFunc(slices.Clone(known.former), func(uid string) bool { return deleted[uid] })
		})
	})
	return errors.Join(failed, err)
}

// again returns the current record of a key, changed by f, without a new revision. The caller must
// own the topic.
func (s *Store) again(key string, f func(*record)) (*record, error) {
	snapshot, known, _ := s.view(key)
	bus, name, _ := cutKey(key)
	r := &record{Revision: known.revision, Time: now(), Former: known.former, Job: known.job}
	switch b, sub := snapshot.Bus(bus), snapshot.Subscriber(bus, name); {
	case !known.deleted.IsZero():
		r.Deleted, r.Time, r.Job = true, known.deleted, nil
	case known.broken != "":
		return nil, fmt.Errorf("the record of %s cannot be read: %s", key, known.broken)
	case name == "" && b != nil:
		if err := r.put(key, b, s.opts.Keys); err != nil {
			return nil, err
		}
	case sub != nil:
		if err := r.put(key, sub, s.opts.Keys); err != nil {
			return nil, err
		}
	default:
		return nil, fmt.Errorf("there is no %s", key)
	}
	f(r)
	return r, nil
}

// purge replaces old records of deletions by tombstones, which compaction removes.
func (s *Store) purge(ctx context.Context, at time.Time) error {
	if len(s.oldDeletions(at)) < purgeAtLeast {
		return nil
	}
	// The counter is stored first: the tombstones also remove the deletions' revisions.
	_, err := s.change(ctx, counterKey, func(ctx context.Context) (*record, error) {
		_, _, next := s.view(counterKey)
		return &record{Revision: next - 1, Time: now()}, nil
	})
	if err != nil {
		return err
	}
	owned, err := s.own(ctx)
	if err != nil {
		return err
	}
	var tombstones []*messaging.Record
	for _, key := range s.oldDeletions(at) { // this store owns the topic: no other process changes them now
		tombstones = append(tombstones, &messaging.Record{Key: key})
	}
	err = owned.publisher.Publish(ctx, tombstones...)
	s.release(true) // the reader may not have read the tombstones
	return err
}

// oldDeletions returns the keys of deletions whose records are not needed any more.
func (s *Store) oldDeletions(at time.Time) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, e := range s.contents.entries {
		if !e.deleted.IsZero() && len(e.former) == 0 && at.Sub(e.deleted) > keepDeletions {
			keys = append(keys, key)
		}
	}
	return keys
}

// compact has the broker compact the topic when that is worth it. Without the admin API it does
// nothing: operators may set a compaction threshold for the namespace.
func (s *Store) compact(ctx context.Context) error {
	s.mu.Lock()
	worth := s.contents.replaced > max(compactAbove, len(s.contents.entries))
	s.mu.Unlock()
	if !worth {
		return nil
	}
	topic := s.client.Topic(s.topic)
	switch err := topic.Compact(ctx); {
	case errors.Is(err, messaging.ErrNoAdminURL):
		return nil
	case err != nil && !errors.Is(err, messaging.ErrBusy):
		return err
	}
	s.mu.Lock()
	s.contents.replaced = 0
	s.mu.Unlock()
	for {
		state, reason, err := topic.Compaction(ctx)
		switch {
		case err != nil:
			return err
		case state == messaging.CompactionFailed:
			return fmt.Errorf("the registry's topic could not be compacted: %s", reason)
		case state == messaging.CompactionDone:
			// Compaction has a subscription of its own, which keeps the messages that it has not
			// read. KeepSubscription need not keep the others.
			return topic.Subscription(KeepSubscription).Reset(ctx, messaging.Latest())
		}
		if !sleep(ctx, time.Second) {
			return ctx.Err()
		}
	}
}

// Reseal stores all objects again whose secrets are not encrypted by the first key, and returns how
// many it stored. Their revisions stay the same.
func (s *Store) Reseal(ctx context.Context, bound time.Duration) (n int, err error) {
	if s.opts.Keys == nil {
		return 0, errors.New("there is no key to encrypt secrets by")
	}
	first := s.opts.Keys.first
	old := func(e *entry) bool {
		return e != nil && e.broken == "" && (e.secrets || e.sealedBy != "" && e.sealedBy != first)
	}
	s.mu.Lock()
	var keys []string
	for key, e := range s.contents.entries {
		if old(e) {
			keys = append(keys, key)
		}
	}
	s.mu.Unlock()
	slices.Sort(keys)
	for _, key := range keys {
		stored := false
		err := bounded(ctx, bound, func(ctx context.Context) (err error) {
			stored, err = s.change(ctx, key, func(context.Context) (*record, error) {
				if _, known, _ := s.view(key); !old(known) {
					return nil, nil //nolint:nilnil // it was changed meanwhile
				}
				return s.again(key, func(*record) {})
			})
			return err
		})
		if err != nil {
			return n, err
		}
		if stored {
			n++
		}
	}
	return n, nil
}
