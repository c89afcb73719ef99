package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"go.uber.org/zap"
)

// Condition is what has to hold for a change to be made. The zero value always holds.
type Condition struct {
	// Revision is what the object's must be (If-Match). 0: any.
	Revision int64
	// Exists: the object must be there (If-Match: *).
	Exists bool
	// New: the object must not be there (If-None-Match: *).
	New bool
}

// check returns nil, or a *ConflictError. revision is that of the object, 0 when there is none.
func (c Condition) check(revision int64) error {
	conflict := func(format string, args ...any) error {
		return &ConflictError{Revision: revision, problem: fmt.Sprintf(format, args...)}
	}
	switch {
	case c.New && revision > 0:
		return conflict("it exists already, with revision %d", revision)
	case (c.Exists || c.Revision > 0) && revision == 0:
		return conflict("it does not exist")
	case c.Revision > 0 && revision != c.Revision:
		return conflict("its revision is %d, not %d", revision, c.Revision)
	}
	return nil
}

// passed returns the conflict of a condition that can hold no more, whatever others change meanwhile: revisions ascend.
func (c Condition) passed(revision int64) error {
	if c.Revision > 0 && revision > c.Revision {
		return c.check(revision)
	}
	return nil
}

// PutBus creates a bus or replaces it. It returns what is stored now; created says that there was none. A bus that is stored as
// it is given keeps its revision. Created, Changed and Revision of what is given do not count.
//
// The errors of changes: [*Invalid], [*ConflictError], [ErrInUse], [ErrUnavailable], [ErrUnknown], [ErrNewer] and [ErrClosed].
func (s *Store) PutBus(ctx context.Context, given Bus, c Condition) (b *Bus, created bool, err error) {
	key := busKey(given.Name)
	if old := s.Snapshot().Bus(given.Name); old != nil {
		if err := c.passed(old.Revision); err != nil {
			return nil, false, err
		}
	}
	if err := validateBus(&given, s.opts.Checks).err(); err != nil {
		return nil, false, err
	}
	_, err = s.change(ctx, key, func(ctx context.Context) (*record, error) {
		var r *record
		b, created, r, err = s.decideBus(ctx, key, given, c)
		return r, err
	})
	if err != nil {
		return nil, false, err
	}
	return b, created, nil
}

// decideBus returns the bus as it is to be, and the record to store unless it is so.
func (s *Store) decideBus(ctx context.Context, key string, given Bus, c Condition) (b *Bus, created bool, r *record, err error) {
	snapshot, known, revision := s.view(key)
	old := snapshot.Bus(given.Name)
	if err := c.check(revisionOf(old != nil, known)); err != nil {
		return nil, false, nil, err
	}
	made := given
	made.Schemas = maps.Clone(given.Schemas)
	if given.Mapping != nil {
		mapping := *given.Mapping
		made.Mapping = &mapping
	}
	made.Revision, made.Changed, made.Created = revision, now(), now()
	if old != nil {
		made.Created = old.Created
	}
	if err := s.mergeBus(&made, old, snapshot); err != nil {
		return nil, false, nil, err
	}
	if old != nil && sameBus(*old, made) {
		return old, false, nil, nil
	}
	r = &record{Revision: revision, Time: made.Changed}
	if err := r.put(key, &made, s.opts.Keys); err != nil {
		return nil, false, nil, err
	}
	if old == nil && s.opts.Pulsar != nil {
		if known != nil && len(known.former) > 0 { // its topic may hold events of the former bus
			if err := s.opts.Pulsar.RemoveBus(ctx, made.Name); err != nil {
				return nil, false, nil, unprepared(err)
			}
		}
		if err := s.opts.Pulsar.MakeBus(ctx, &made); err != nil {
			return nil, false, nil, unprepared(err)
		}
	}
	return &made, old == nil, r, nil
}

// mergeBus makes a bus that was given the one that is to be, or finds what is wrong with it.
func (s *Store) mergeBus(made, old *Bus, snapshot *Snapshot) error {
	if old != nil {
		or(&made.Partitions, old.Partitions)
	}
	or(&made.Partitions, s.usualPartitions())
	var f faults
	switch {
	case old != nil && made.Partitions != old.Partitions:
		f.add("/partitions", "cannot be changed: it is %d", old.Partitions)
	case made.Partitions > 1 && !s.opts.Partitions:
		f.add("/partitions", "must be 1: more take the admin API, whose address pulsar.admin_url is not set")
	}
	buses, _ := snapshot.Counts()
	if old == nil && buses >= MaxBuses {
		f.add("", "there are %d buses already, as many as there can be", buses)
	}
	return f.err()
}

// usualPartitions is the default of Bus.Partitions.
func (s *Store) usualPartitions() int {
	if s.opts.Partitions {
		return defaultPartitions
	}
	return 1
}

// revisionOf is an object's revision, 0 when there is none. One whose record cannot be read has the record's, at least 1.
func revisionOf(exists bool, known *entry) int64 {
	if known != nil && (exists || known.broken != "") {
		return max(known.revision, 1)
	}
	return 0
}

// unprepared is the error of a change for which something could not be made at Pulsar.
func unprepared(err error) error {
	var invalid *Invalid
	if errors.As(err, &invalid) || errors.Is(err, ErrInUse) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// DeleteBus deletes a bus. While it has subscribers that is [ErrInUse]; without a bus it is [ErrNotFound].
func (s *Store) DeleteBus(ctx context.Context, name string, c Condition) error {
	key := busKey(name)
	_, err := s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, revision := s.view(key)
		there := revisionOf(snapshot.Bus(name) != nil, known)
		if err := missing(there, c, "bus", name); err != nil {
			return nil, err
		}
		if n := snapshot.countSubscribers(name); n > 0 {
			return nil, fmt.Errorf("%w: the bus has %d subscribers: delete them first", ErrInUse, n)
		}
		r := &record{Revision: revision, Time: now(), Deleted: true}
		if s.opts.Pulsar != nil {
			r.Former = []string{""}
		}
		return r, nil
	})
	s.tidySoon()
	return err
}

// missing says why an object cannot be deleted.
func missing(revision int64, c Condition, kind, name string) error {
	if revision == 0 && c == (Condition{}) {
		return fmt.Errorf("%w: there is no %s %s", ErrNotFound, kind, quote(name))
	}
	return c.check(revision)
}

// countSubscribers counts a bus' subscribers, those whose records cannot be read included.
func (s *Snapshot) countSubscribers(bus string) int {
	n := len(s.subscribers[bus])
	for key := range s.unreadable {
		if of, name, _ := cutKey(key); of == bus && name != "" {
			n++
		}
	}
	return n
}

// sameBus reports whether two are the same but for what the store sets.
func sameBus(a, b Bus) bool {
	b.Revision, b.Created, b.Changed = a.Revision, a.Created, a.Changed
	return same(&a, &b)
}

// same reports whether two objects of a kind are stored the same.
func same(a, b any) bool {
	plainA, secretsA, errA := split(a)
	plainB, secretsB, errB := split(b)
	return errA == nil && errB == nil && bytes.Equal(plainA, plainB) && reflect.DeepEqual(secretsA, secretsB)
}

// PutSubscriber creates a subscriber or replaces it, as [Store.PutBus] does a bus. Without the bus the error is [ErrNotFound].
// UID and Reason of what is given do not count. Hidden secrets keep what is stored.
func (s *Store) PutSubscriber(ctx context.Context, given Subscriber, c Condition) (sub *Subscriber, created bool, err error) {
	key := subscriberKey(given.Bus, given.Name)
	if old := s.Snapshot().Subscriber(given.Bus, given.Name); old != nil {
		if err := c.passed(old.Revision); err != nil {
			return nil, false, err
		}
	}
	var f faults
	if f.name("/bus", given.Bus); len(f) == 0 {
		f.name("/name", given.Name)
	}
	if err := f.err(); err != nil {
		return nil, false, err
	}
	fresh := birth{uid: newUID()}
	_, err = s.change(ctx, key, func(ctx context.Context) (*record, error) {
		var r *record
		sub, created, r, err = s.decideSubscriber(ctx, key, &fresh, &given, c)
		return r, err
	})
	if err != nil {
		if !errors.Is(err, ErrUnknown) {
			s.abandon(fresh.prepared)
		}
		return nil, false, err
	}
	return sub, created, nil
}

// birth is what a new subscriber has before it is stored. It is the same in each attempt to store it.
type birth struct {
	uid      string
	prepared *Subscriber // set when topics were made for it, or may have been
}

// abandon removes what was made for a subscriber that was not stored. What cannot be removed stays: it is empty.
func (s *Store) abandon(sub *Subscriber) {
	if sub == nil || s.opts.Pulsar == nil {
		return
	}
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, 30*time.Second)
		defer cancel()
		if err := s.opts.Pulsar.RemoveSubscriber(ctx, sub.Bus, sub.Name, sub.UID); err != nil {
			s.log.Warn("topics of a subscriber that was not stored are left", zap.String("bus", sub.Bus), zap.String("subscriber", sub.Name),
				zap.String("uid", sub.UID), zap.Error(err))
		}
	})
}

// decideSubscriber returns the subscriber as it is to be, and the record to store unless it is so.
func (s *Store) decideSubscriber(ctx context.Context, key string, fresh *birth, given *Subscriber, c Condition) (sub *Subscriber, created bool, r *record, err error) {
	snapshot, known, revision := s.view(key)
	bus := snapshot.Bus(given.Bus)
	if bus == nil {
		return nil, false, nil, fmt.Errorf("%w: there is no bus %s", ErrNotFound, quote(given.Bus))
	}
	old, readable := s.stored(snapshot, key, given)
	if err := c.check(revisionOf(readable, known)); err != nil {
		return nil, false, nil, err
	}
	made, err := clone(given)
	if err != nil {
		return nil, false, nil, err
	}
	if err := s.merge(made, old, bus, snapshot); err != nil {
		return nil, false, nil, err
	}
	if readable && sameSubscriber(*old, *made) {
		return old, false, nil, nil
	}
	made.Revision, made.Changed = revision, now()
	r = &record{Revision: revision, Time: made.Changed}
	if known != nil {
		r.Former = known.former
	}
	if old != nil {
		r.Job = known.job
	}
	if old == nil {
		made.Created, made.UID = made.Changed, fresh.uid
	}
	if err := r.put(key, made, s.opts.Keys); err != nil {
		return nil, false, nil, err
	}
	if old == nil && s.opts.Pulsar != nil {
		fresh.prepared = made
		if err := s.opts.Pulsar.MakeSubscriber(ctx, bus, made); err != nil {
			return nil, false, nil, unprepared(err)
		}
	}
	return made, old == nil, r, nil
}

// stored returns a subscriber as it is stored, nil when there is none. One whose record cannot be read is not readable: it has no secrets, and its rules are not
// compiled. It stays the same subscriber when it is put again: what waits for it, and its dead letters, are in topics of its UID.
func (s *Store) stored(snapshot *Snapshot, key string, sub *Subscriber) (old *Subscriber, readable bool) {
	if old := snapshot.Subscriber(sub.Bus, sub.Name); old != nil {
		return old, true
	}
	if _, known, _ := s.view(key); known != nil {
		return known.rest, false
	}
	return nil, false
}

// merge makes a subscriber that was given the one that is to be, or finds what is wrong with it.
func (s *Store) merge(made, old *Subscriber, bus *Bus, snapshot *Snapshot) error {
	made.keep(old)
	made.fill()
	made.Reason, made.UID, made.Revision, made.Created, made.Changed = "", "", 0, time.Time{}, time.Time{}
	rules := 0
	if old != nil {
		made.UID, made.Revision, made.Created, made.Changed = old.UID, old.Revision, old.Created, old.Changed
		if made.State == old.State {
			made.Reason = old.Reason
		}
		rules = len(old.Rules)
	}
	f := keepSecrets(made, old)
	f.unlessAt(f, validateSubscriber(made, s.opts.Checks))
	if old != nil {
		if made.Order != old.Order {
			f.add("/order", "cannot be changed: it is %s; make another subscriber", old.Order)
		}
		if made.Start != old.Start {
			f.add("/start", "cannot be changed: it is %s", old.Start)
		}
	}
	if made.Order == OrderTotal && bus.Partitions != 1 {
		f.add("/order", "must not be total on a bus of %d partitions: events of one partition only have an order", bus.Partitions)
	}
	if _, subscribers := snapshot.Counts(); old == nil && subscribers >= MaxSubscribers {
		f.add("", "there are %d subscribers already, as many as there can be", subscribers)
	}
	if all := snapshot.Rules() - rules + len(made.Rules); len(made.Rules) > rules && all > MaxRules {
		f.add("/rules", "there would be %d rules of all subscribers, and there can be %d", all, MaxRules)
	}
	made.checkWeight(&f, old, snapshot)
	return f.err()
}

// sameSubscriber reports whether two are the same but for what the store sets.
func sameSubscriber(a, b Subscriber) bool { return same(&a, &b) }

// DeleteSubscriber deletes a subscriber. Without one the error is [ErrNotFound].
func (s *Store) DeleteSubscriber(ctx context.Context, bus, name string, c Condition) error {
	key := subscriberKey(bus, name)
	_, err := s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, revision := s.view(key)
		old := snapshot.Subscriber(bus, name)
		if err := missing(revisionOf(old != nil, known), c, "subscriber", name); err != nil {
			return nil, err
		}
		r := &record{Revision: revision, Time: now(), Deleted: true}
		if known != nil {
			r.Former = known.former
		}
		if old == nil && known != nil {
			old = known.rest
		}
		if old != nil && s.opts.Pulsar != nil {
			r.Former = append(r.Former[:len(r.Former):len(r.Former)], old.UID)
		}
		return r, nil
	})
	s.tidySoon()
	return err
}

// SetState changes a subscriber's state and the reason for it, whatever its revision. It returns what is stored now.
func (s *Store) SetState(ctx context.Context, bus, name string, state State, reason string) (*Subscriber, error) {
	return s.ChangeState(ctx, bus, name, state, reason, Condition{})
}

// ChangeState is [Store.SetState] on a condition.
func (s *Store) ChangeState(ctx context.Context, bus, name string, state State, reason string, c Condition) (sub *Subscriber, err error) {
	var f faults
	oneOf(&f, "/state", state, Active, Paused, Disabled)
	f.text("/reason", reason, maxText)
	if err := f.err(); err != nil {
		return nil, err
	}
	key := subscriberKey(bus, name)
	_, err = s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, revision := s.view(key)
		old := snapshot.Subscriber(bus, name)
		if old == nil && c == (Condition{}) {
			return nil, fmt.Errorf("%w: there is no subscriber %s", ErrNotFound, quote(name))
		}
		if err := c.check(revisionOf(old != nil, known)); err != nil {
			return nil, err
		}
		if old == nil { // its record cannot be read
			return nil, fmt.Errorf("%w: there is no subscriber %s", ErrNotFound, quote(name))
		}
		if old.State == state && old.Reason == reason {
			sub = old
			return nil, nil //nolint:nilnil // there is nothing to change
		}
		made, err := clone(old)
		if err != nil {
			return nil, err
		}
		made.State, made.Reason, made.Revision, made.Changed = state, reason, revision, now()
		sub = made
		r := &record{Revision: revision, Time: made.Changed, Former: known.former, Job: known.job}
		return r, r.put(key, made, s.opts.Keys)
	})
	if err != nil {
		return nil, err
	}
	return sub, nil
}
