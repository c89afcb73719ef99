package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// Condition is what must hold before an object is changed. The zero value always holds.
type Condition struct {
	// Revision is the revision that the object must have (If-Match). 0: any.
	Revision int64
	// Exists: the object must be there (If-Match: *).
	Exists bool
	// New: the object must not be there (If-None-Match: *).
	New bool
}

// check returns nil if the condition holds, else a *ConflictError. revision is that of the object,
// 0 if there is no object.
func (c Condition) check(revision int64) error {
	conflict := func(format string, args ...any) error {
		return &model.ConflictError{Revision: revision, Problem: fmt.Sprintf(format, args...)}
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

// passed returns the conflict of a condition that can never hold again: the object has a later
// revision already, and revisions only grow.
func (c Condition) passed(revision int64) error {
	if c.Revision > 0 && revision > c.Revision {
		return c.check(revision)
	}
	return nil
}

// PutBus creates or replaces a bus. It returns the bus as it is stored. created reports whether the
// bus is new. A bus that equals the stored one keeps its revision. PutBus ignores Created, Changed
// and Revision of given.
//
// Changes return these errors: [*model.Invalid], [*model.ConflictError], [model.ErrInUse],
// [model.ErrUnavailable], [model.ErrUnknown], [model.ErrNewer] and [model.ErrClosed].
func (s *Store) PutBus(ctx context.Context, given model.Bus, c Condition) (b *model.Bus, created bool, err error) {
	key := busKey(given.Name)
	if old := s.Snapshot().Bus(given.Name); old != nil {
		if err := c.passed(old.Revision); err != nil {
			return nil, false, err
		}
	}
	if err := model.ValidateBus(&given, s.opts.Checks).Err(); err != nil {
		return nil, false, err
	}
	_, err = s.change(ctx, key, func(ctx context.Context) (r *record, err error) {
		snapshot, known, revision := s.view(key)
		old := snapshot.Bus(given.Name)
		created = old == nil
		if err := c.check(revisionOf(!created, known)); err != nil {
			return nil, err
		}
		b, r, err = s.completeBus(snapshot, given, revision, now())
		if err != nil || r == nil || !created || s.opts.Pulsar == nil {
			return r, err
		}
		if known != nil && len(known.former) > 0 { // the topic may hold events of a deleted bus of this name
			if err := s.opts.Pulsar.RemoveBus(ctx, b.Name); err != nil {
				return nil, provisionError(err)
			}
		}
		return r, provisionError(s.opts.Pulsar.MakeBus(ctx, b))
	})
	if err != nil {
		return nil, false, err
	}
	return b, created, nil
}

// completeBus returns the bus as it is to be stored, and its record: nil if the bus is stored like
// this already.
func (s *Store) completeBus(snapshot *Snapshot, given model.Bus, revision int64, at time.Time) (*model.Bus, *record, error) {
	old, made := snapshot.Bus(given.Name), given
	made.Schemas = maps.Clone(given.Schemas)
	if given.Mapping != nil {
		mapping := *given.Mapping
		made.Mapping = &mapping
	}
	made.Revision, made.Changed, made.Created = revision, at, at
	if old != nil {
		made.Created = old.Created
	}
	if err := s.mergeBus(&made, old, snapshot); err != nil {
		return nil, nil, err
	}
	if old != nil && sameBus(*old, made) {
		return old, nil, nil
	}
	r := &record{Revision: revision, Time: at}
	return &made, r, r.put(busKey(made.Name), &made, s.opts.Keys)
}

// mergeBus completes a given bus from the stored one and from defaults. It returns what is wrong
// with the result.
func (s *Store) mergeBus(made, old *model.Bus, snapshot *Snapshot) error {
	if old != nil {
		model.Or(&made.Partitions, old.Partitions)
	}
	model.Or(&made.Partitions, s.usualPartitions())
	var f model.FaultList
	switch {
	case old != nil && made.Partitions != old.Partitions:
		f.Add("/partitions", "cannot be changed: it is %d", old.Partitions)
	case made.Partitions > 1 && !s.opts.Partitions:
		f.Add("/partitions", "must be 1: more need the admin API, and pulsar.admin_url is not set")
	}
	buses, _ := snapshot.Counts()
	if old == nil && buses >= model.MaxBuses {
		f.Add("", "there are %d buses already, which is the maximum", buses)
	}
	return f.Err()
}

// usualPartitions is the default of Bus.Partitions.
func (s *Store) usualPartitions() int {
	if s.opts.Partitions {
		return model.DefaultPartitions
	}
	return 1
}

// revisionOf is an object's revision, 0 if there is no object. An object whose record cannot be
// read has the record's revision, at least 1.
func revisionOf(exists bool, known *entry) int64 {
	if known != nil && (exists || known.broken != "") {
		return max(known.revision, 1)
	}
	return 0
}

// provisionError returns the error of a change whose topics could not be created at Pulsar.
func provisionError(err error) error {
	var invalid *model.Invalid
	if err == nil || errors.As(err, &invalid) || errors.Is(err, model.ErrInUse) {
		return err
	}
	return fmt.Errorf("%w: %w", model.ErrUnavailable, err)
}

// DeleteBus deletes a bus. The error is [model.ErrInUse] while the bus has subscribers, and
// [model.ErrNotFound] if there is no such bus.
func (s *Store) DeleteBus(ctx context.Context, name string, c Condition) error {
	key := busKey(name)
	_, err := s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, revision := s.view(key)
		there := revisionOf(snapshot.Bus(name) != nil, known)
		if err := missing(there, c, "bus", name); err != nil {
			return nil, err
		}
		if n := snapshot.countSubscribers(name); n > 0 {
			return nil, fmt.Errorf("%w: the bus has %d subscribers: delete them first", model.ErrInUse, n)
		}
		r := &record{Revision: revision, Time: now(), Deleted: true}
		if s.opts.Pulsar != nil {
			r.Former = []string{""}
		}
		return r, nil
	})
	s.cleanUpSoon()
	return err
}

// missing returns why an object cannot be deleted, or nil.
func missing(revision int64, c Condition, kind, name string) error {
	if revision == 0 && c == (Condition{}) {
		return fmt.Errorf("%w: there is no %s %s", model.ErrNotFound, kind, model.Quote(name))
	}
	return c.check(revision)
}

// countSubscribers counts a bus' subscribers, including those whose records cannot be read.
func (s *Snapshot) countSubscribers(bus string) int {
	n := len(s.subscribers[bus])
	for key := range s.unreadable {
		if of, name, _ := cutKey(key); of == bus && name != "" {
			n++
		}
	}
	return n
}

// sameBus reports whether two buses are equal except for the fields that the store sets.
func sameBus(a, b model.Bus) bool {
	b.Revision, b.Created, b.Changed = a.Revision, a.Created, a.Changed
	return same(&a, &b)
}

// same reports whether two objects of one type have the same stored form. How texts in patterns and
// schemas are escaped does not count.
func same(a, b any) bool {
	plainA, secretsA, errA := model.Split(a)
	plainB, secretsB, errB := model.Split(b)
	if errA != nil || errB != nil || !maps.Equal(secretsA, secretsB) {
		return false
	}
	return bytes.Equal(plainA, plainB) || reflect.DeepEqual(values(plainA), values(plainB))
}

// values decodes valid JSON, numbers with their digits.
func values(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	_ = d.Decode(&v) // it was encoded by model.Split
	return v
}

// PutSubscriber creates or replaces a subscriber, as [Store.PutBus] does with a bus. The error is
// [model.ErrNotFound] if there is no such bus. PutSubscriber ignores UID and Reason of given. A
// secret that is given hidden keeps its stored value.
func (s *Store) PutSubscriber(ctx context.Context, given model.Subscriber, c Condition) (sub *model.Subscriber, created bool, err error) {
	key := subscriberKey(given.Bus, given.Name)
	if old := s.Snapshot().Subscriber(given.Bus, given.Name); old != nil {
		if err := c.passed(old.Revision); err != nil {
			return nil, false, err
		}
	}
	var f model.FaultList
	if f.Name("/bus", given.Bus); len(f) == 0 {
		f.Name("/name", given.Name)
	}
	if err := f.Err(); err != nil {
		return nil, false, err
	}
	uid := newUID()                   // all attempts to store a new subscriber use the same
	var provisioned *model.Subscriber // topics were created for it, or may have been
	_, err = s.change(ctx, key, func(ctx context.Context) (r *record, err error) {
		snapshot, known, revision := s.view(key)
		bus := snapshot.Bus(given.Bus)
		if bus == nil {
			return nil, fmt.Errorf("%w: there is no bus %s", model.ErrNotFound, model.Quote(given.Bus))
		}
		old, readable := s.stored(snapshot, key, &given)
		created = old == nil
		if err := c.check(revisionOf(readable, known)); err != nil {
			return nil, err
		}
		sub, r, err = s.completeSubscriber(snapshot, &given, uid, revision, now())
		if err != nil || r == nil || !created || s.opts.Pulsar == nil {
			return r, err
		}
		provisioned = sub
		return r, provisionError(s.opts.Pulsar.MakeSubscriber(ctx, bus, sub))
	})
	if err != nil {
		if provisioned != nil && !errors.Is(err, model.ErrUnknown) {
			s.removeTopicsOf(provisioned)
		}
		return nil, false, err
	}
	return sub, created, nil
}

// removeTopicsOf removes the topics of a subscriber that was not stored. Topics that it cannot
// remove stay; they are empty.
func (s *Store) removeTopicsOf(sub *model.Subscriber) {
	s.running.Go(func() {
		ctx, cancel := context.WithTimeout(s.life, 30*time.Second)
		defer cancel()
		if err := s.opts.Pulsar.RemoveSubscriber(ctx, sub.Bus, sub.Name, sub.UID); err != nil {
			s.log.Warn("topics of a subscriber that was not stored remain", zap.String("bus", sub.Bus), zap.String("subscriber", sub.Name),
				zap.String("uid", sub.UID), zap.Error(err))
		}
	})
}

// completeSubscriber returns the subscriber as it is to be stored, with the UID if it is new, and
// its record: nil if the subscriber is stored like this already.
func (s *Store) completeSubscriber(snapshot *Snapshot, given *model.Subscriber, uid string, revision int64, at time.Time) (*model.Subscriber, *record, error) {
	key := subscriberKey(given.Bus, given.Name)
	_, known, _ := s.view(key)
	old, readable := s.stored(snapshot, key, given)
	made, err := model.Clone(given)
	if err != nil {
		return nil, nil, err
	}
	if err := s.merge(made, old, snapshot); err != nil {
		return nil, nil, err
	}
	if readable && same(old, made) {
		return old, nil, nil
	}
	made.Revision, made.Changed = revision, at
	r := &record{Revision: revision, Time: at}
	if known != nil {
		r.Former = known.former
	}
	if old == nil {
		made.Created, made.UID = at, uid
	} else if known != nil {
		r.Job = known.job
	}
	return made, r, r.put(key, made, s.opts.Keys)
}

// stored returns a subscriber as it is stored, nil if there is none. If its record cannot be read,
// it is not readable: it has no secrets, and its rules are not compiled. It keeps its UID when it
// is put again: the topics with its waiting events and its dead letters are named after the UID.
func (s *Store) stored(snapshot *Snapshot, key string, sub *model.Subscriber) (old *model.Subscriber, readable bool) {
	if old := snapshot.Subscriber(sub.Bus, sub.Name); old != nil {
		return old, true
	}
	if _, known, _ := s.view(key); known != nil {
		return known.rest, false
	}
	return nil, false
}

// merge completes a given subscriber from the stored one and from defaults. It returns what is
// wrong with the result.
func (s *Store) merge(made, old *model.Subscriber, snapshot *Snapshot) error {
	bus := snapshot.Bus(made.Bus)
	made.Keep(old)
	made.Fill()
	made.Reason, made.UID, made.Revision, made.Created, made.Changed = "", "", 0, time.Time{}, time.Time{}
	rules := 0
	if old != nil {
		made.UID, made.Revision, made.Created, made.Changed = old.UID, old.Revision, old.Created, old.Changed
		if made.State == old.State {
			made.Reason = old.Reason
		}
		rules = len(old.Rules)
	}
	f := model.KeepSecrets(made, old)
	f.UnlessAt(f, model.ValidateSubscriber(made, s.opts.Checks))
	if old != nil {
		if made.Order != old.Order {
			f.Add("/order", "cannot be changed: it is %s; make another subscriber", old.Order)
		}
		if made.Start != old.Start {
			f.Add("/start", "cannot be changed: it is %s", old.Start)
		}
	}
	if made.Order == model.OrderTotal && bus.Partitions != 1 {
		f.Add("/order", "must not be total on a bus of %d partitions: events of one partition only have an order", bus.Partitions)
	}
	if _, subscribers := snapshot.Counts(); old == nil && subscribers >= model.MaxSubscribers {
		f.Add("", "there are %d subscribers already, which is the maximum", subscribers)
	}
	if all := snapshot.Rules() - rules + len(made.Rules); len(made.Rules) > rules && all > model.MaxRules {
		f.Add("/rules", "there would be %d rules of all subscribers, and there can be %d", all, model.MaxRules)
	}
	checkWeight(&f, made, old, snapshot)
	return f.Err()
}

// DeleteSubscriber deletes a subscriber. The error is [model.ErrNotFound] if there is none.
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
	s.cleanUpSoon()
	return err
}

// SetState changes a subscriber's state and the reason for it, whatever its revision is. It returns
// the subscriber as it is stored.
func (s *Store) SetState(ctx context.Context, bus, name string, state model.State, reason string) (*model.Subscriber, error) {
	return s.ChangeState(ctx, bus, name, state, reason, Condition{})
}

// ChangeState is [Store.SetState] with a condition.
func (s *Store) ChangeState(ctx context.Context, bus, name string, state model.State, reason string, c Condition) (sub *model.Subscriber, err error) {
	var f model.FaultList
	model.OneOf(&f, "/state", state, model.Active, model.Paused, model.Disabled)
	f.Text("/reason", reason, model.MaxText)
	if err := f.Err(); err != nil {
		return nil, err
	}
	key := subscriberKey(bus, name)
	_, err = s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, revision := s.view(key)
		old := snapshot.Subscriber(bus, name)
		if old == nil && c == (Condition{}) {
			return nil, fmt.Errorf("%w: there is no subscriber %s", model.ErrNotFound, model.Quote(name))
		}
		if err := c.check(revisionOf(old != nil, known)); err != nil {
			return nil, err
		}
		if old == nil { // its record cannot be read
			return nil, fmt.Errorf("%w: there is no subscriber %s", model.ErrNotFound, model.Quote(name))
		}
		if old.State == state && old.Reason == reason {
			sub = old
			return nil, nil //nolint:nilnil // there is nothing to change
		}
		made, err := model.Clone(old)
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
