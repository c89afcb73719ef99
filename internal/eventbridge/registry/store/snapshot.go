package store

import (
	"iter"
	"maps"
	"slices"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// Snapshot is the registry at one moment. It is immutable: what it returns must not be changed.
type Snapshot struct {
	revision    int64
	rules       int
	weight      int // of all rules
	buses       map[string]*model.Bus
	subscribers map[string]map[string]*model.Subscriber // by bus and name
	unreadable  map[string]string                       // why a record cannot be read, by its key
}

// NewSnapshot makes a snapshot of objects, for tests. It fills in defaults. If an object is not
// valid, the error is an [*model.Invalid].
func NewSnapshot(revision int64, buses []model.Bus, subscribers []model.Subscriber) (*Snapshot, error) {
	s := emptySnapshot()
	s.revision = revision
	for _, b := range buses {
		model.SetDefault(&b.Partitions, 1)
		model.SetDefault(&b.MaxEventBytes, model.DefaultMaxEventBytes)
		model.SetDefault(&b.Revision, revision)
		if err := model.ValidateBus(&b, model.Checks{}).Err(); err != nil {
			return nil, err
		}
		s.buses[b.Name] = &b
	}
	for _, given := range subscribers {
		made, err := model.Clone(&given)
		if err != nil {
			return nil, err
		}
		made.Fill()
		model.SetDefault(&made.Revision, revision)
		model.SetDefault(&made.UID, "uid")
		if err := model.ValidateSubscriber(made, model.Checks{}).Err(); err != nil {
			return nil, err
		}
		s.setSubscriber(made)
	}
	return s, nil
}

func emptySnapshot() *Snapshot {
	return &Snapshot{buses: map[string]*model.Bus{}, subscribers: map[string]map[string]*model.Subscriber{}, unreadable: map[string]string{}}
}

// Revision is the revision of the last change in the snapshot.
func (s *Snapshot) Revision() int64 { return s.revision }

// Rules is the number of rules of all subscribers.
func (s *Snapshot) Rules() int { return s.rules }

// Weight is the weight of the patterns of all rules, see eventpattern.Pattern.
func (s *Snapshot) Weight() int { return s.weight }

// Bus returns a bus, nil if it does not exist.
func (s *Snapshot) Bus(name string) *model.Bus { return s.buses[name] }

// Buses returns all buses, sorted by name.
func (s *Snapshot) Buses() iter.Seq[*model.Bus] { return ordered(s.buses) }

// Subscriber returns a subscriber of a bus, nil if it does not exist.
func (s *Snapshot) Subscriber(bus, name string) *model.Subscriber { return s.subscribers[bus][name] }

// Subscribers returns a bus' subscribers, sorted by name.
func (s *Snapshot) Subscribers(bus string) iter.Seq[*model.Subscriber] {
	return ordered(s.subscribers[bus])
}

// Unreadable returns the objects that the registry has but the snapshot does not, because their
// records cannot be read: their keys (bus/BUS and sub/BUS/NAME) and the reasons. An engine must not
// go on with a bus of which a subscriber is missing: the subscriber would lose events.
func (s *Snapshot) Unreadable() map[string]string { return maps.Clone(s.unreadable) }

// UnreadableBus reports whether the registry has a bus of that name whose record cannot be read.
func (s *Snapshot) UnreadableBus(name string) bool { return s.unreadable[busKey(name)] != "" }

// WithUnreadable returns a copy in which the record of a key cannot be read, for tests.
func (s *Snapshot) WithUnreadable(key, reason string) *Snapshot {
	bus, name, _ := cutKey(key)
	made := s.copyFor(bus, name)
	made.remove(bus, name)
	made.unreadable[key] = reason
	return made
}

func ordered[V any](m map[string]V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(m[name]) {
				return
			}
		}
	}
}

// copyFor returns a copy in which one bus or, with a name, one subscriber can be changed.
func (s *Snapshot) copyFor(bus, name string) *Snapshot {
	made := *s
	made.unreadable = maps.Clone(s.unreadable)
	if name == "" {
		made.buses = maps.Clone(s.buses)
		return &made
	}
	made.subscribers = maps.Clone(s.subscribers)
	if of := s.subscribers[bus]; of != nil {
		made.subscribers[bus] = maps.Clone(of)
	}
	return &made
}

// draft returns a copy that can be changed.
func (s *Snapshot) draft() *Snapshot {
	made := *s
	made.buses, made.unreadable = maps.Clone(s.buses), maps.Clone(s.unreadable)
	made.subscribers = make(map[string]map[string]*model.Subscriber, len(s.subscribers))
	for bus, of := range s.subscribers {
		made.subscribers[bus] = maps.Clone(of)
	}
	return &made
}

func (s *Snapshot) setSubscriber(sub *model.Subscriber) {
	s.removeSubscriber(sub.Bus, sub.Name)
	if s.subscribers[sub.Bus] == nil {
		s.subscribers[sub.Bus] = map[string]*model.Subscriber{}
	}
	s.subscribers[sub.Bus][sub.Name] = sub
	s.rules += len(sub.Rules)
	s.weight += sub.Weight()
}

func (s *Snapshot) removeSubscriber(bus, name string) {
	old := s.subscribers[bus][name]
	if old == nil {
		return
	}
	s.rules -= len(old.Rules)
	s.weight -= old.Weight()
	delete(s.subscribers[bus], name)
	if len(s.subscribers[bus]) == 0 {
		delete(s.subscribers, bus)
	}
}

// Counts returns how many buses and subscribers there are.
func (s *Snapshot) Counts() (buses, subscribers int) {
	for _, of := range s.subscribers {
		subscribers += len(of)
	}
	return len(s.buses), subscribers
}
