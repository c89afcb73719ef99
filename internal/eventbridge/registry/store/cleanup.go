package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

const (
	cleanUpEvery = time.Minute
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

// cleanUpSoon wakes cleanUp.
func (s *Store) cleanUpSoon() {
	select {
	case s.cleanUpNow <- struct{}{}:
	default:
	}
}

// cleanUp removes the topics of deleted objects and old records of deletions, and has the broker
// compact the topic. Each instance does so at its own times. The others need not repeat it.
func (s *Store) cleanUp(ctx context.Context) {
	every := time.NewTicker(cleanUpEvery)
	defer every.Stop()
	warned := false
	for {
		err := s.cleanUpOnce(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			warned = false
		case !errors.Is(err, model.ErrInUse) && !warned:
			s.log.Warn("cannot remove the topics and records of deleted objects, will keep trying", zap.Error(err))
			warned = true
		}
		select {
		case <-every.C:
		case <-s.cleanUpNow:
			sleep(ctx, 2*time.Second) // the clients of a deleted object's topics stop within moments
		case <-ctx.Done():
			return
		}
	}
}

func (s *Store) cleanUpOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cleanUpEvery)
	defer cancel()
	return errors.Join(s.removeFormer(ctx), s.purge(ctx, time.Now()), s.compact(ctx))
}

// removeFormer removes the topics of deleted objects.
func (s *Store) removeFormer(ctx context.Context) (err error) {
	if s.opts.Pulsar == nil {
		return nil
	}
	for _, key := range s.keysOf(func(e *entry) bool { return len(e.former) > 0 }) {
		if ctx.Err() != nil {
			break
		}
		err = errors.Join(err, s.removeFormerOf(ctx, key))
	}
	return err
}

// keysOf returns the keys whose entries match, sorted.
func (s *Store) keysOf(match func(*entry) bool) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, e := range s.contents.entries {
		if match(e) {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	return keys
}

// removeFormerOf removes the topics of the deleted objects that had a key. A UID is used once: no
// subscriber can begin to use its topics meanwhile. The topic of a bus may belong to a new bus of
// that name: it is removed while no other instance changes anything.
func (s *Store) removeFormerOf(ctx context.Context, key string) (failed error) {
	bus, name, _ := cutKey(key)
	_, known, _ := s.view(key)
	if known == nil {
		return nil
	}
	removed := make(map[string]bool)
	for _, uid := range known.former {
		if name == "" {
			continue
		}
		err := s.opts.Pulsar.RemoveSubscriber(ctx, bus, name, uid)
		if err == nil {
			removed[uid] = true
		}
		failed = errors.Join(failed, err)
	}
	if name != "" && len(removed) == 0 {
		return failed
	}
	_, err := s.change(ctx, key, func(ctx context.Context) (*record, error) {
		snapshot, known, _ := s.view(key)
		if known == nil {
			return nil, nil //nolint:nilnil // another instance has done it
		}
		if name == "" && len(known.former) > 0 {
			if snapshot.Bus(bus) == nil {
				if err := s.opts.Pulsar.RemoveBus(ctx, bus); err != nil {
					return nil, err
				}
			}
			removed[""] = true
		}
		left := slices.DeleteFunc(slices.Clone(known.former), func(uid string) bool { return removed[uid] })
		if len(left) == len(known.former) {
			return nil, nil //nolint:nilnil // another instance has done it
		}
		r, err := s.currentRecord(key)
		if err == nil {
			r.Former = left
		}
		return r, err
	})
	return errors.Join(failed, err)
}

// currentRecord returns the record of a key as it is stored, with the same revision, to be stored
// again. The caller must own the topic.
func (s *Store) currentRecord(key string) (*record, error) {
	snapshot, known, _ := s.view(key)
	bus, name, _ := cutKey(key)
	r := &record{Revision: known.revision, Time: now(), Former: known.former, Job: known.job}
	switch b, sub := snapshot.Bus(bus), snapshot.Subscriber(bus, name); {
	case !known.deleted.IsZero():
		r.Deleted, r.Time, r.Job = true, known.deleted, nil
		return r, nil
	case known.broken != "":
		return nil, fmt.Errorf("the record of %s cannot be read: %s", key, known.broken)
	case name == "" && b != nil:
		return r, r.put(key, b, s.opts.Keys)
	case sub != nil:
		return r, r.put(key, sub, s.opts.Keys)
	default:
		return nil, fmt.Errorf("there is no %s", key)
	}
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
	lease, err := s.own(ctx)
	if err != nil {
		return err
	}
	var tombstones []*messaging.Record
	for _, key := range s.oldDeletions(at) { // this store owns the topic: no other process changes them now
		tombstones = append(tombstones, &messaging.Record{Key: key})
	}
	err = lease.publisher.Publish(ctx, tombstones...)
	s.release(lease, true) // the reader may not have read the tombstones
	return err
}

// oldDeletions returns the keys of deletions whose records are not needed any more.
func (s *Store) oldDeletions(at time.Time) []string {
	return s.keysOf(func(e *entry) bool {
		return !e.deleted.IsZero() && len(e.former) == 0 && at.Sub(e.deleted) > keepDeletions
	})
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

// Reencrypt stores all objects again whose secrets are not encrypted by the first key, and returns
// how many it stored. bound bounds each change. Their revisions stay the same.
func (s *Store) Reencrypt(ctx context.Context, bound time.Duration) (n int, err error) {
	if s.opts.Keys == nil {
		return 0, errors.New("there is no key to encrypt secrets by")
	}
	old := func(e *entry) bool {
		return e != nil && e.broken == "" && (e.secrets || e.sealedBy != "" && e.sealedBy != s.opts.Keys.first)
	}
	for _, key := range s.keysOf(old) {
		within, cancel := context.WithTimeoutCause(ctx, bound, fmt.Errorf("it took longer than %s", bound))
		stored, err := s.change(within, key, func(context.Context) (*record, error) {
			if _, known, _ := s.view(key); !old(known) {
				return nil, nil //nolint:nilnil // it was changed meanwhile
			}
			return s.currentRecord(key)
		})
		cancel()
		if err != nil {
			return n, err
		}
		if stored {
			n++
		}
	}
	return n, nil
}
