package eventpattern

import "slices"

// otherSet holds the anything-but conditions of a path. A value meets all of them, except those
// that exclude it, which a lookup finds. So the lookup for a value costs as much as the number of
// conditions that exclude it.
type otherSet struct {
	owner    *edit
	posts    []post
	of       []*condition // conditions; nil: the entry is free
	places   [][]place    // places of wildcards, by entry
	free     []uint32
	excluded *lookup // the numbers of its posts are positions in the lists above
}

func (t *otherSet) edited(e *edit) *otherSet {
	if t == nil {
		return &otherSet{owner: e}
	}
	if t.owner == e {
		return t
	}
	return &otherSet{owner: e, posts: slices.Clone(t.posts), of: slices.Clone(t.of), places: slices.Clone(t.places),
		free: slices.Clone(t.free), excluded: t.excluded}
}

func (t *otherSet) add(e *edit, c *condition, p post) {
	number := uint32(len(t.of))
	if n := len(t.free); n > 0 {
		number, t.free = t.free[n-1], t.free[:n-1]
		t.posts[number], t.of[number] = p, c
	} else {
		t.posts, t.of, t.places = append(t.posts, p), append(t.of, c), append(t.places, nil)
	}
	if len(c.excluded()) > 0 {
		t.excluded = t.excluded.edited(e)
	}
	for i, but := 0, c.excluded(); i < len(but); i++ {
		t.excluded.add(e, &but[i], makePost(number, postSure), makePost(number, 0), &t.places[number])
	}
}

func (t *otherSet) remove(e *edit, c *condition, p post) {
	number := uint32(0)
	for t.of[number] != c || t.posts[number] != p {
		number++
	}
	for i, but := 0, c.excluded(); i < len(but); i++ {
		t.excluded = t.excluded.edited(e)
		t.excluded.remove(e, &but[i], makePost(number, postSure), makePost(number, 0), &t.places[number])
	}
	t.of[number], t.places[number] = nil, nil
	t.free = append(t.free, number)
}

// meet passes posts to hit: those of conditions that at least one value of the path meets. first is
// the first value of the path.
func (t *otherSet) meet(s *Scratch, first int32) {
	if len(s.marks) < len(t.posts) {
		s.marks = make([]uint32, 2*len(t.posts))
	}
	if s.mark > 1<<31 {
		clear(s.marks)
		s.mark = 1
	}
	// An entry has the mark base+n if its condition excludes each of the first n values.
	base, all := s.mark, false
	for v := first; v >= 0 && s.left >= 0; v = s.values[v].same {
		some := false
		if t.excluded != nil {
			k, data := s.values[v].kind, s.data(v)
			s.hits = t.excluded.find(s, k, data, s.hits[:0])
			s.left -= 1 + len(s.hits)
			for _, p := range s.hits {
				number := p.number()
				if s.mark > base && s.marks[number] != s.mark || p&postSure == 0 && !s.anyMatches(t.of[number].excluded(), k, data) {
					continue
				}
				s.marks[number], some = s.mark+1, true
			}
		}
		s.mark++
		if !some {
			all = true
			break
		}
	}
	for number, p := range t.posts {
		if s.left < 0 {
			break
		}
		if t.of[number] != nil && (all || s.marks[number] != s.mark) {
			s.hit(p, true)
		}
	}
	s.mark++
}

// excluded returns the conditions that an anything-but excludes. There are none for {"exists":
// true}, which every value meets.
func (c *condition) excluded() []condition {
	if c.more == nil {
		return nil
	}
	return c.more.but
}
