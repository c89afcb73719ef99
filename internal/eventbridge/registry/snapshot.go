package registry

import (
	"iter"
	"maps"
	"slices"
)

// Snapshot is the registry at one moment. It is immutable: what it returns must not be changed.
type Snapshot struct {
	revision    int64
	buses       map[string]*Bus
	subscribers map[string]map[string]*Subscriber // by bus and name
}

// Revision is that of the last change which the snapshot has.
func (s *Snapshot) Revision() int64 { return s.revision }

// Bus returns a bus, nil when there is none of that name.
func (s *Snapshot) Bus(name string) *Bus { return s.buses[name] }

// Buses returns all buses by name.
func (s *Snapshot) Buses() iter.Seq[*Bus] { return ordered(s.buses) }

// Subscriber returns a subscriber of a bus, nil when there is none of that name.
func (s *Snapshot) Subscriber(bus, name string) *Subscriber { return s.subscribers[bus][name] }

// Subscribers returns a bus' subscribers by name.
func (s *Snapshot) Subscribers(bus string) iter.Seq[*Subscriber] { return ordered(s.subscribers[bus]) }

func ordered[V any](m map[string]V) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			if !yield(m[name]) {
				return
			}
		}
	}
}
