package history

import (
	"fmt"
	"maps"
	"slices"
)

// Fate is what a publisher said of a record.
type Fate int

// The fates.
const (
	Open    Fate = iota // no outcome
	Stored              // acknowledged
	Perhaps             // an error that leaves it open whether the record is stored
	Refused             // never accepted
)

// Record is one record that a caller gave to a publisher.
type Record struct {
	// Stream is a caller that gives its records one after the other, N the record's number,
	// ascending.
	Stream string
	N      int
	Fate   Fate
	// Outcomes is how often the caller heard of it.
	Outcomes int
}

// Entry is one record in the log of a partition, in the log's order.
type Entry struct {
	Stream    string
	N         int
	Partition string
}

// Published is what publishers did to one topic.
type Published struct {
	Records []Record
	Log     []Entry
	// Exclusive: one stream at a time owns the topic, and never again once another has written.
	Exclusive bool
}

// Check lists the promises that were broken.
func (p Published) Check() []Violation {
	var out []Violation
	violation := func(k Kind, format string, args ...any) {
		out = append(out, Violation{k, fmt.Sprintf(format, args...)})
	}
	type name struct {
		stream string
		n      int
	}
	type way struct{ stream, partition string }
	known := make(map[name]bool)
	stored := make(map[name]int)
	numbers := make(map[way]map[int]bool)
	for _, e := range p.Log {
		stored[name{e.Stream, e.N}]++
		l := way{e.Stream, e.Partition}
		if numbers[l] == nil {
			numbers[l] = make(map[int]bool)
		}
		numbers[l][e.N] = true
	}
	for _, r := range p.Records {
		id := name{r.Stream, r.N}
		known[id] = true
		switch {
		case r.Outcomes != 1:
			violation(Outcome, "%s#%d had %d outcomes", r.Stream, r.N, r.Outcomes)
		case r.Fate == Stored && stored[id] == 0:
			violation(Loss, "%s#%d was acknowledged and is not stored", r.Stream, r.N)
		case r.Fate == Refused && stored[id] > 0:
			violation(Outcome, "%s#%d was refused and is stored", r.Stream, r.N)
		}
	}
	for id := range stored {
		if !known[id] {
			violation(Unknown, "%s#%d is stored", id.stream, id.n)
		}
	}
	// What is not stored at all is found above: here the numbers of a stream are counted without
	// gaps.
	rank := make(map[way]map[int]int)
	sequences := make(map[way]*Sequence)
	for l, set := range numbers {
		rank[l] = make(map[int]int, len(set))
		sequences[l] = new(Sequence)
		for _, n := range slices.Sorted(maps.Keys(set)) {
			rank[l][n] = len(rank[l])
		}
	}
	owner := make(map[string]string)
	former := make(map[way]bool)
	for _, e := range p.Log {
		l := way{e.Stream, e.Partition}
		if err := sequences[l].See(rank[l][e.N]); err != nil {
			violation(Gap, "%s#%d on partition %s (counted there without gaps): %v", e.Stream, e.N, e.Partition, err)
		}
		if !p.Exclusive {
			continue
		}
		if former[l] {
			violation(Owner, "%s#%d on partition %s is behind %s", e.Stream, e.N, e.Partition, owner[e.Partition])
			continue
		}
		if o, ok := owner[e.Partition]; ok && o != e.Stream {
			former[way{o, e.Partition}] = true
		}
		owner[e.Partition] = e.Stream
	}
	for l, s := range sequences {
		if err := s.End(len(rank[l])); err != nil {
			violation(StaleEnd, "%s on partition %s (counted there without gaps): %v", l.stream, l.partition, err)
		}
	}
	return out
}
