package eventpattern

import (
	"math"
	"slices"
)

// rangeSet finds the ranges that contain a number. Its bounds are sorted. The position 2i+1 means
// the i-th bound itself, and 2i the gap below it. So a range is two integers, and find determines
// the position of a number once for all ranges.
type rangeSet struct {
	owner  *edit
	ranges []numberRange // sorted by low once the edit is done
	bounds []string
	// highest makes ranges an interval tree: ranges are halved recursively, and highest has at the
	// middle of each part the greatest high of that part.
	highest []uint32
	stale   bool
}

type numberRange struct {
	low, high uint32
	post      post
	of        *condition
}

func (t *rangeSet) edited(e *edit) *rangeSet {
	if t == nil {
		t = &rangeSet{owner: e}
	} else if t.owner != e {
		t = &rangeSet{owner: e, ranges: slices.Clone(t.ranges), bounds: t.bounds, highest: t.highest}
	}
	if !t.stale {
		t.stale = true
		e.ranges = append(e.ranges, t)
	}
	return t
}

func (t *rangeSet) add(c *condition, p post) {
	t.ranges = append(t.ranges, numberRange{post: p, of: c})
}

func (t *rangeSet) remove(c *condition, p post) {
	t.ranges = slices.DeleteFunc(t.ranges, func(r numberRange) bool { return r.post == p && r.of == c })
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
	slices.SortFunc(t.ranges, func(a, b numberRange) int { return int(a.low) - int(b.low) })
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

// find appends the posts of the ranges that contain the number with this key.
func (t *rangeSet) find(key []byte, hits []post) []post {
	i, end := 0, len(t.bounds)
	for i < end {
		mid := (i + end) / 2
		if string(key) > t.bounds[mid] {
			i = mid + 1
		} else {
			end = mid
		}
	}
	at := uint32(2 * i)
	if i < len(t.bounds) && t.bounds[i] == string(key) {
		at++
	}
	return t.holding(0, len(t.ranges), at, hits)
}

func (t *rangeSet) holding(from, to int, at uint32, hits []post) []post {
	for from < to {
		mid := (from + to) / 2
		if t.highest[mid] < at {
			return hits // all ranges of this part end below the number
		}
		r := &t.ranges[mid]
		if r.low > at {
			to = mid // all ranges from here on begin above the number
			continue
		}
		if r.high >= at {
			hits = append(hits, r.post)
		}
		hits = t.holding(from, mid, at, hits)
		from = mid + 1
	}
	return hits
}
