package registry

import (
	"iter"
	"maps"
	"slices"
)

// Snapshot is the registry at one moment. It is immutable: what it returns must not be changed.
type Snapshot struct {
	revision    int64
	rules       int
	weight      int // of all rules
	buses       map[string]*Bus
	subscribers map[string]map[string]*Subscriber // by bus and name
	unreadable  map[string]string                 // why, by key
}

// NewSnapshot makes one of objects, for tests and for looking at what an import would make. Defaults are filled in. The
// error is an [*Invalid] where an object is not valid in itself.
func NewSnapshot(revision int64, buses []Bus, subscribers []Subscriber) (*Snapshot, error) {
	s := emptySnapshot()
	s.revision = revision
	for _, b := range buses {
		or(&b.Partitions, 1)
		or(&b.MaxEventBytes, defaultMaxEventBytes)
		or(&b.Revision, revision)
		if err := validateBus(&b, Checks{}).err(); err != nil {
			return nil, err
		}
		s.buses[b.Name] = &b
	}
	for _, given := range subscribers {
		made, err := clone(&given)
		if err != nil {
			return nil, err
		}
		made.fill()
		or(&made.Revision, revision)
		or(&made.UID, "uid")
		if err := validateSubscriber(made, Checks{}).err(); err != nil {
			return nil, err
		}
		s.setSubscriber(made)
	}
	return s, nil
}

func emptySnapshot() *Snapshot {
	return &Snapshot{buses: map[string]*Bus{}, subscribers: map[string]map[string]*Subscriber{}, unreadable: map[string]string{}}
}

// Revision is that of the last change which the snapshot has.
func (s *Snapshot) Revision() int64 { return s.revision }

// Rules is the number of rules of all subscribers.
func (s *Snapshot) Rules() int { return s.rules }

// Weight returns what the patterns of all rules take in an engine, see match.Pattern.
func (s *Snapshot) Weight() int { return s.weight }

// Bus returns a bus, nil when there is none of that name.
func (s *Snapshot) Bus(name string) *Bus { return s.buses[name] }

// Buses returns all buses by name.
func (s *Snapshot) Buses() iter.Seq[*Bus] { return ordered(s.buses) }

// Subscriber returns a subscriber of a bus, nil when there is none of that name.
func (s *Snapshot) Subscriber(bus, name string) *Subscriber { return s.subscribers[bus][name] }

// Subscribers returns a bus' subscribers by name.
func (s *Snapshot) Subscribers(bus string) iter.Seq[*Subscriber] { return ordered(s.subscribers[bus]) }

// Unreadable returns the objects that the registry has and the snapshot has not, because their records cannot be read: keys
// (bus/BUS and sub/BUS/NAME) and reasons. A bus of which a subscriber is missing must not go on as if there were none: its
// events would be lost to it.
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

// copyFor returns a copy in which what the key stands for can be changed.
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
	made.subscribers = make(map[string]map[string]*Subscriber, len(s.subscribers))
	for bus, of := range s.subscribers {
		made.subscribers[bus] = maps.Clone(of)
	}
	return &made
}

func (s *Snapshot) setSubscriber(sub *Subscriber) {
	s.removeSubscriber(sub.Bus, sub.Name)
	if s.subscribers[sub.Bus] == nil {
		s.subscribers[sub.Bus] = map[string]*Subscriber{}
	}
	s.subscribers[sub.Bus][sub.Name] = sub
	s.rules += len(sub.Rules)
	s.weight += sub.weight()
}

func (s *Snapshot) removeSubscriber(bus, name string) {
	old := s.subscribers[bus][name]
	if old == nil {
		return
	}
	s.rules -= len(old.Rules)
	s.weight -= old.weight()
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
