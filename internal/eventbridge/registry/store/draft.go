package store

import (
	"context"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// Draft checks a list of changes before the first one is made: each against the registry as it will
// be after those before. It stores no change. It is not safe for concurrent use.
type Draft struct {
	store    *Store
	snapshot *Snapshot
	bytes    int
	revision int64
	at       time.Time             // of all changes: no other time is longer as text
	orders   map[model.Order]error // the broker checks each order once
}

// Draft begins with the current registry.
func (s *Store) Draft() *Draft {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Draft{
		store: s, snapshot: s.contents.snapshot.draft(), bytes: s.contents.bytes(), revision: s.contents.snapshot.revision,
		at: now().Truncate(time.Second).Add(999 * time.Millisecond), orders: make(map[model.Order]error),
	}
}

// PutBus checks [Store.PutBus]. changed reports whether the bus differs from the stored one.
func (d *Draft) PutBus(given model.Bus) (created, changed bool, err error) {
	created = d.snapshot.Bus(given.Name) == nil
	d.revision++
	made, r, err := d.store.completeBus(d.snapshot, given, d.revision, d.at)
	if err == nil && r != nil {
		err = d.count(busKey(given.Name), r)
	}
	if made == nil {
		made = &given
	}
	d.snapshot.buses[given.Name] = made
	return created, r != nil, err
}

// PutSubscriber checks [Store.PutSubscriber]. The draft must have its bus.
func (d *Draft) PutSubscriber(ctx context.Context, given *model.Subscriber) (created, changed bool, err error) {
	key := subscriberKey(given.Bus, given.Name)
	old, _ := d.store.stored(d.snapshot, given.Bus, given.Name)
	d.revision++
	made, r, err := d.store.completeSubscriber(d.snapshot, given, newUID(), d.revision, d.at)
	if err == nil && old == nil && d.store.opts.Pulsar != nil {
		if _, asked := d.orders[made.Order]; !asked {
			d.orders[made.Order] = d.store.opts.Pulsar.CheckOrder(ctx, made.Order)
		}
		err = d.orders[made.Order]
	}
	if err == nil && r != nil {
		err = d.count(key, r)
	}
	if made == nil {
		made = given
	}
	d.snapshot.setSubscriber(made)
	return old == nil, r != nil, err
}

// Delete deletes a bus, or a subscriber if a name is given. The error is [model.ErrInUse] for a bus
// with subscribers: those whose records cannot be read are in no snapshot.
func (d *Draft) Delete(bus, subscriber string) error {
	key := objectKey(bus, subscriber)
	if n := d.snapshot.countSubscribers(bus); subscriber == "" && n > 0 {
		return fmt.Errorf("%w: the records of %d of its subscribers cannot be read, and it cannot be deleted before them", model.ErrInUse, n)
	}
	d.revision++
	_ = d.count(key, d.store.deletion(d.snapshot, key, d.revision, d.at)) // a deletion is never refused
	d.snapshot.remove(bus, subscriber)
	return nil
}

// count counts the bytes of a record in place of the one that its key has.
func (d *Draft) count(key string, r *record) error {
	m, err := r.message(key, newID(), d.store.opts.Instance)
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
