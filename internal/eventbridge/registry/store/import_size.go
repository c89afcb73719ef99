package store

import (
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// draftSizes tracks the size of the registry during an import, so that an import that does not fit
// is refused before its first change.
type draftSizes struct {
	store    *Store
	bytes    int
	revision int64     // of the last change
	at       time.Time // of all changes: no other time is longer as text
}

func (s *Store) draftSizes() *draftSizes {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := now().Truncate(time.Second).Add(999 * time.Millisecond)
	return &draftSizes{store: s, bytes: s.contents.bytes, revision: s.contents.snapshot.revision, at: at}
}

// record returns the record of the next change.
func (d *draftSizes) record() *record {
	d.revision++
	return &record{Revision: d.revision, Time: d.at}
}

// putBus returns what is wrong with the size of a bus that is to be stored.
func (d *draftSizes) putBus(made model.Bus, old *model.Bus) error {
	r := d.record()
	made.Revision, made.Changed, made.Created = r.Revision, d.at, d.at
	if old != nil {
		made.Created = old.Created
	}
	return d.put(busKey(made.Name), &made, r)
}

// putSubscriber is putBus for a subscriber.
func (d *draftSizes) putSubscriber(made model.Subscriber, old *model.Subscriber) error {
	key := subscriberKey(made.Bus, made.Name)
	_, known, _ := d.store.view(key)
	r := d.record()
	made.Revision, made.Changed = r.Revision, d.at
	if old == nil {
		made.Created, made.UID = made.Changed, newUID()
	}
	if known != nil {
		r.Former = known.former
		if old != nil {
			r.Job = known.job
		}
	}
	return d.put(key, &made, r)
}

func (d *draftSizes) put(key string, object any, r *record) error {
	if err := r.put(key, object, d.store.opts.Keys); err != nil {
		return err
	}
	return d.take(key, r)
}

// remove counts the record that a deleted object leaves.
func (d *draftSizes) remove(snapshot *Snapshot, step Step) {
	r := d.record()
	r.Deleted, r.Former = true, []string{""}
	key := busKey(step.Bus)
	if step.Subscriber != "" {
		key = subscriberKey(step.Bus, step.Subscriber)
		r.Former = []string{snapshot.Subscriber(step.Bus, step.Subscriber).UID}
		if _, known, _ := d.store.view(key); known != nil {
			r.Former = append(r.Former, known.former...)
		}
	}
	_ = d.take(key, r) // a deletion is never refused
}

// take counts a record instead of the one that its key has.
func (d *draftSizes) take(key string, r *record) error {
	r.Format, r.Change, r.By = formatVersion, newID(), d.store.opts.Instance
	m, err := r.message(key)
	if err != nil {
		return err
	}
	size, old := len(m.Payload), 0
	if _, known, _ := d.store.view(key); known != nil {
		old = known.bytes
	}
	d.bytes += size - old
	return fits(d.bytes, size, old)
}
