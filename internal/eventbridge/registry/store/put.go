package store

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
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

// PutBus creates or replaces a bus. It returns the bus as it is stored. created reports whether the
// bus is new. A bus that equals the stored one keeps its revision. PutBus ignores Created, Changed
// and Revision of given.
//
// Changes return these errors: [*model.Invalid], [*model.ConflictError], [model.ErrInUse],
// [model.ErrUnavailable], [model.ErrUnknown], [model.ErrNewer] and [model.ErrClosed].
func (s *Store) PutBus(ctx context.Context, given model.Bus, c Condition) (b *model.Bus, created bool, err error) {
	key := busKey(given.Name)
	_, err = s.change(ctx, key, func(ctx context.Context) (r *record, err error) {
		snapshot, known, revision := s.view(key)
		created = snapshot.Bus(given.Name) == nil
		if err := c.check(known.objectRevision()); err != nil {
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

// completeBus completes a given bus from the stored one and from defaults, and validates the
// result. It returns the bus as it is to be stored, and its record: nil if the bus is stored like
// this already.
func (s *Store) completeBus(snapshot *Snapshot, made model.Bus, revision int64, at time.Time) (*model.Bus, *record, error) {
	old := snapshot.Bus(made.Name)
	made.Revision, made.Created, made.Changed = 0, at, at
	if old != nil {
		made.Revision, made.Created, made.Changed = old.Revision, old.Created, old.Changed
		model.SetDefault(&made.Partitions, old.Partitions)
	}
	if !s.opts.Partitions {
		model.SetDefault(&made.Partitions, 1)
	}
	model.SetDefault(&made.Partitions, model.DefaultPartitions)
	f := model.ValidateBus(&made, s.opts.Checks)
	switch {
	case old != nil && made.Partitions != old.Partitions:
		f.Add("/partitions", "cannot be changed: it is %d", old.Partitions)
	case made.Partitions > 1 && !s.opts.Partitions:
		f.Add("/partitions", "must be 1: more need the admin API, and pulsar.admin_url is not set")
	}
	if buses, _ := snapshot.Counts(); old == nil && buses >= model.MaxBuses {
		f.Add("", "there are %d buses already, which is the maximum", buses)
	}
	if err := f.Err(); err != nil {
		return nil, nil, err
	}
	if old != nil && same(old, &made) {
		return old, nil, nil
	}
	made.Revision, made.Changed = revision, at
	r := &record{Revision: revision, Time: at}
	return &made, r, r.put(busKey(made.Name), &made, s.opts.Keys)
}

// provisionError returns the error of a change whose topics could not be created at Pulsar.
func provisionError(err error) error {
	var invalid *model.Invalid
	if err == nil || errors.As(err, &invalid) || errors.Is(err, model.ErrInUse) {
		return err
	}
	return fmt.Errorf("%w: %w", model.ErrUnavailable, err)
}

// same reports whether two objects of one type have the same stored form. How texts in patterns and
// schemas are escaped does not count.
func same(a, b any) bool {
	plainA, secretsA, errA := model.Split(a)
	plainB, secretsB, errB := model.Split(b)
	return errA == nil && errB == nil && maps.Equal(secretsA, secretsB) && reflect.DeepEqual(values(plainA), values(plainB))
}

// values decodes valid JSON, numbers with their digits.
func values(text []byte) (v any) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	_ = d.Decode(&v) // it was encoded by model.Split
	return v
}

// PutSubscriber creates or replaces a subscriber, as [Store.PutBus] does with a bus. The error is
// [model.ErrNotFound] if the bus does not exist. PutSubscriber ignores UID and Reason of given. A
// secret that is given hidden keeps its stored value.
func (s *Store) PutSubscriber(ctx context.Context, given model.Subscriber, c Condition) (sub *model.Subscriber, created bool, err error) {
	key := subscriberKey(given.Bus, given.Name)
	uid := newUID()                   // all attempts to store a new subscriber use the same
	var provisioned *model.Subscriber // topics were created for it, or may have been
	_, err = s.change(ctx, key, func(ctx context.Context) (r *record, err error) {
		snapshot, known, revision := s.view(key)
		bus := snapshot.Bus(given.Bus)
		if bus == nil {
			return nil, fmt.Errorf("%w: there is no bus %s", model.ErrNotFound, model.Quote(given.Bus))
		}
		old, _ := s.stored(snapshot, given.Bus, given.Name)
		created = old == nil
		if err := c.check(known.objectRevision()); err != nil {
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

// stored returns a subscriber as it is stored, nil if there is none. If its record cannot be read,
// it is not readable: it has no secrets, and its rules are not compiled. It keeps its UID when it
// is put again: the topics with its waiting events and its dead letters are named after the UID.
func (s *Store) stored(snapshot *Snapshot, bus, name string) (old *model.Subscriber, readable bool) {
	if old := snapshot.Subscriber(bus, name); old != nil {
		return old, true
	}
	if _, known, _ := s.view(subscriberKey(bus, name)); known != nil {
		return known.rest, false
	}
	return nil, false
}

// completeSubscriber is [Store.completeBus] for a subscriber. A new one gets the UID.
func (s *Store) completeSubscriber(snapshot *Snapshot, given *model.Subscriber, uid string, revision int64, at time.Time) (*model.Subscriber, *record, error) {
	key := subscriberKey(given.Bus, given.Name)
	_, known, _ := s.view(key)
	old, readable := s.stored(snapshot, given.Bus, given.Name)
	made, err := model.Clone(given)
	if err != nil {
		return nil, nil, err
	}
	made.Reason, made.UID, made.Revision, made.Created, made.Changed = "", uid, 0, at, at
	if old != nil {
		model.SetDefault(&made.State, old.State)
		model.SetDefault(&made.Order, old.Order)
		model.SetDefault(&made.Start, old.Start)
		made.UID, made.Revision, made.Created, made.Changed = old.UID, old.Revision, old.Created, old.Changed
		if made.State == old.State {
			made.Reason = old.Reason
		}
	}
	made.Fill()
	if err := s.checkSubscriber(made, old, snapshot).Err(); err != nil {
		return nil, nil, err
	}
	if readable && same(old, made) {
		return old, nil, nil
	}
	made.Revision, made.Changed = revision, at
	r := &record{Revision: revision, Time: at}
	if known != nil {
		r.Former = known.former
		if old != nil {
			r.Job = known.job
		}
	}
	return made, r, r.put(key, made, s.opts.Keys)
}

// checkSubscriber puts the stored secrets where made has hidden ones, and returns what is wrong
// with made. old is the stored subscriber, nil if there is none.
func (s *Store) checkSubscriber(made, old *model.Subscriber, snapshot *Snapshot) model.FaultList {
	f := model.KeepSecrets(made, old)
	f.UnlessAt(f, model.ValidateSubscriber(made, s.opts.Checks))
	if bus := snapshot.Bus(made.Bus); made.Order == model.OrderTotal && bus.Partitions != 1 {
		f.Add("/order", "must not be total on a bus of %d partitions: order exists only within one partition", bus.Partitions)
	}
	if _, subscribers := snapshot.Counts(); old == nil && subscribers >= model.MaxSubscribers {
		f.Add("", "there are %d subscribers already, which is the maximum", subscribers)
	}
	rules, weight := 0, 0
	if old != nil {
		if made.Order != old.Order {
			f.Add("/order", "cannot be changed: it is %s; make another subscriber", old.Order)
		}
		if made.Start != old.Start {
			f.Add("/start", "cannot be changed: it is %s", old.Start)
		}
		rules, weight = len(old.Rules), old.Weight()
	}
	if all := snapshot.Rules() - rules + len(made.Rules); len(made.Rules) > rules && all > model.MaxRules {
		f.Add("/rules", "all subscribers together would have %d rules; the limit is %d", all, model.MaxRules)
	}
	checkWeight(&f, made.Weight(), weight, snapshot.Weight())
	return f
}

// checkWeight refuses rules whose patterns weigh too much. Rules that weigh no more than before are
// accepted: they may be older than the limit. all is the weight of all rules at present.
func checkWeight(f *model.FaultList, now, before, all int) {
	switch all += now - before; {
	case now <= before:
	case now > model.MaxSubscriberWeight:
		f.Add("/rules", "the patterns have %d fields and alternatives after $or is expanded; the limit is %d", now, model.MaxSubscriberWeight)
	case all > model.MaxWeight:
		f.Add("/rules", "the patterns of all subscribers would have %d fields and alternatives after $or is expanded; the limit is %d", all, model.MaxWeight)
	}
}

// DeleteBus deletes a bus. The error is [model.ErrInUse] while the bus has subscribers, and
// [model.ErrNotFound] if the bus does not exist.
func (s *Store) DeleteBus(ctx context.Context, name string, c Condition) error {
	return s.remove(ctx, name, "", c)
}

// DeleteSubscriber deletes a subscriber. The error is [model.ErrNotFound] if there is none.
func (s *Store) DeleteSubscriber(ctx context.Context, bus, name string, c Condition) error {
	return s.remove(ctx, bus, name, c)
}

// remove deletes a bus or, with a name, a subscriber.
func (s *Store) remove(ctx context.Context, bus, name string, c Condition) error {
	key := objectKey(bus, name)
	_, err := s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, revision := s.view(key)
		if err := c.check(known.objectRevision()); err != nil {
			return nil, err
		}
		if known.objectRevision() == 0 {
			return nil, fmt.Errorf("%w: the registry has no %s", model.ErrNotFound, key)
		}
		if n := snapshot.countSubscribers(bus); name == "" && n > 0 {
			return nil, fmt.Errorf("%w: the bus has %d subscribers: delete them first", model.ErrInUse, n)
		}
		return s.deletion(snapshot, key, revision, now()), nil
	})
	s.cleanUpSoon()
	return err
}

// deletion returns the record of a deletion. It names the object whose topics are to be removed.
func (s *Store) deletion(snapshot *Snapshot, key string, revision int64, at time.Time) *record {
	bus, name, _ := cutKey(key)
	r := &record{Revision: revision, Time: at, Deleted: true}
	if _, known, _ := s.view(key); known != nil && name != "" {
		r.Former = slices.Clone(known.former)
	}
	if s.opts.Pulsar == nil {
		return r
	}
	if name == "" {
		r.Former = []string{""}
	} else if old, _ := s.stored(snapshot, bus, name); old != nil {
		r.Former = append(r.Former, old.UID)
	}
	return r
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

// ChangeState changes a subscriber's state and the reason for it. It returns the subscriber as it
// is stored. The error is [model.ErrNotFound] if the subscriber does not exist.
func (s *Store) ChangeState(ctx context.Context, bus, name string, state model.State, reason string, c Condition) (sub *model.Subscriber, err error) {
	key := subscriberKey(bus, name)
	_, err = s.change(ctx, key, func(context.Context) (*record, error) {
		snapshot, known, revision := s.view(key)
		if err := c.check(known.objectRevision()); err != nil {
			return nil, err
		}
		old := snapshot.Subscriber(bus, name)
		if old == nil {
			return nil, fmt.Errorf("%w: there is no subscriber %s", model.ErrNotFound, model.Quote(name))
		}
		if old.State == state && old.Reason == reason {
			sub = old
			return nil, nil //nolint:nilnil // there is nothing to change
		}
		made := *old
		made.State, made.Reason, made.Revision, made.Changed = state, reason, revision, now()
		sub = &made
		r := &record{Revision: revision, Time: made.Changed, Former: known.former, Job: known.job}
		return r, r.put(key, sub, s.opts.Keys)
	})
	if err != nil {
		return nil, err
	}
	return sub, nil
}
