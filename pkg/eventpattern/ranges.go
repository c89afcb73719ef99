package eventpattern

import (
	"math"
	"slices"
	"sort"
)

// rangeSet finds the ranges that contain a number or an address, by their keys. Its bounds are
// sorted. The position 2i+1 means the i-th bound itself, and 2i the gap below it. So a range is two
// integers, and find determines the position of a key once for all ranges.
type rangeSet struct {
	ranges []keyRange // sorted by low once the edit is done
	bounds []string
	// highest makes ranges an interval tree: ranges are halved recursively, and highest has at the
	// middle of each part the greatest high of that part.
	highest []uint32
	stale   bool
}

type keyRange struct {
	low, high uint32
	posting   posting
	of        *condition
}

func (t *rangeSet) clone() *rangeSet {
	if t == nil {
		return nil
	}
	return &rangeSet{ranges: slices.Clone(t.ranges), bounds: t.bounds, highest: t.highest}
}

// addRange adds a range to the set, which it creates if it is nil.
func addRange(e *edit, set **rangeSet, c *condition, p posting) {
	if *set == nil {
		*set = &rangeSet{}
	}
	t := *set
	t.ranges = append(t.ranges, keyRange{posting: p, of: c})
	if !t.stale {
		t.stale = true
		e.ranges = append(e.ranges, t)
	}
}

// overlapping estimates how many of the ranges overlap another one, from a sample.
func (t *rangeSet) overlapping(c *condition) int {
	const sample = 32
	if t == nil || len(t.ranges) == 0 {
		return 0
	}
	seen, overlapping := 0, 0
	for i := 0; i < len(t.ranges); i += len(t.ranges)/sample + 1 {
		seen++
		if c.overlaps(t.ranges[i].of) {
			overlapping++
		}
	}
	return len(t.ranges) * overlapping / seen
}

// finish prepares the set for find, after all changes of an edit.
func (t *rangeSet) finish() {
	var bounds []string
	for i := range t.ranges {
		for _, b := range []bound{t.ranges[i].of.more.low, t.ranges[i].of.more.high} {
			if b.key != "" {
				bounds = append(bounds, b.key)
			}
		}
	}
	slices.Sort(bounds)
	t.bounds = slices.Compact(bounds)
	rank := make(map[string]uint32, len(t.bounds))
	for i, b := range t.bounds {
		rank[b] = uint32(2*i + 1)
	}
	for i := range t.ranges {
		r := &t.ranges[i]
		r.low, r.high = 0, math.MaxUint32
		if b := r.of.more.low; b.key != "" {
			if r.low = rank[b.key]; !b.inclusive {
				r.low++
			}
		}
		if b := r.of.more.high; b.key != "" {
			if r.high = rank[b.key]; !b.inclusive {
				r.high--
			}
		}
	}
	slices.SortFunc(t.ranges, func(a, b keyRange) int { return int(a.low) - int(b.low) })
	t.highest = make([]uint32, len(t.ranges))
	t.summarise(0, len(t.ranges))
	t.stale = false
}

func (t *rangeSet) summarise(from, to int) uint32 {
	if from >= to {
		return 0
	}
	mid := (from + to) / 2
	h := max(t.ranges[mid].high, t.summarise(from, mid), t.summarise(mid+1, to))
	t.highest[mid] = h
	return h
}

// find appends the postings of the ranges that contain the number or address with this key.
func (t *rangeSet) find(key []byte, found []posting) []posting {
	i := sort.Search(len(t.bounds), func(i int) bool { return t.bounds[i] >= string(key) })
	at := uint32(2 * i)
	if i < len(t.bounds) && t.bounds[i] == string(key) {
		at++
	}
	return t.holding(0, len(t.ranges), at, found)
}

func (t *rangeSet) holding(from, to int, at uint32, found []posting) []posting {
	for from < to {
		mid := (from + to) / 2
		if t.highest[mid] < at {
			return found // all ranges of this part end below the key
		}
		r := &t.ranges[mid]
		if r.low > at {
			to = mid // all ranges from here on begin above the key
			continue
		}
		if r.high >= at {
			found = append(found, r.posting)
		}
		found = t.holding(from, mid, at, found)
		from = mid + 1
	}
	return found
}
