package eventpattern

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Index finds the rules that match an event. The caller chooses the ID of each rule. All methods
// are safe for concurrent use: a match uses a consistent snapshot of the rules, and never waits for
// a change.
type Index[ID comparable] struct {
	current atomic.Pointer[view[ID]]

	change  sync.Mutex
	numbers map[ID]uint32 // guarded by change
	// live is the weight of the present rules, all that of the rules in the snapshot, with removed
	// ones. Both are guarded by change.
	live, all int
}

// view is the data that a match uses.
type view[ID comparable] struct {
	snap  *snapshot
	rules []rule[ID] // by number
}

// rule is a rule of the index. A removed rule has no pattern. Its clauses stay in the snapshot
// until the next compaction: removing them would need an inverse of each insertion.
type rule[ID comparable] struct {
	id      ID
	pattern *Pattern
}

// NewIndex returns an index without rules.
func NewIndex[ID comparable]() *Index[ID] {
	x := &Index[ID]{numbers: map[ID]uint32{}}
	x.current.Store(&view[ID]{snap: newSnapshot()})
	return x
}

// Change is a set of changes that [Index.Update] makes in one step. It is valid only within that
// call.
type Change[ID comparable] struct {
	index    *Index[ID]
	edit     *edit
	rules    []rule[ID]
	ownRules bool
}

// Update makes all the changes of f in one step: a match sees none of them or all. One Update is
// the fastest way to add thousands of rules. f must not call a method of the index except Match. If f
// panics, the changes before the panic take effect.
func (x *Index[ID]) Update(f func(*Change[ID])) {
	x.change.Lock()
	defer x.change.Unlock()
	v := x.current.Load()
	c := &Change[ID]{index: x, edit: v.snap.edit(), rules: v.rules}
	defer func() {
		c.compact()
		x.current.Store(&view[ID]{c.edit.done(), c.rules})
	}()
	f(c)
}

// Set adds a rule. It replaces a rule with the same ID.
func (c *Change[ID]) Set(id ID, p *Pattern) {
	c.Remove(id)
	number := uint32(len(c.rules))
	c.index.numbers[id] = number
	c.rules = append(c.rules, rule[ID]{id, p})
	c.edit.add(number, p)
	c.index.live += p.Weight()
	c.index.all += p.Weight()
}

// Remove removes a rule, if it exists.
func (c *Change[ID]) Remove(id ID) {
	number, ok := c.index.numbers[id]
	if !ok {
		return
	}
	delete(c.index.numbers, id)
	if !c.ownRules {
		c.rules, c.ownRules = slices.Clone(c.rules), true
	}
	c.index.live -= c.rules[number].pattern.Weight()
	c.rules[number] = rule[ID]{}
}

// compact compiles the rules anew if most of them, by weight, were removed. So removed rules at most
// double the memory of the index.
func (c *Change[ID]) compact() {
	if c.index.all <= 2*c.index.live {
		return
	}
	c.index.all = c.index.live
	old := c.rules
	c.rules, c.edit = make([]rule[ID], 0, len(c.index.numbers)), newSnapshot().edit()
	for _, r := range old {
		if r.pattern != nil {
			number := uint32(len(c.rules))
			c.index.numbers[r.id] = number
			c.rules = append(c.rules, r)
			c.edit.add(number, r.pattern)
		}
	}
}

// Set is an [Index.Update] that sets one rule.
func (x *Index[ID]) Set(id ID, p *Pattern) { x.Update(func(c *Change[ID]) { c.Set(id, p) }) }

// Len returns the number of rules.
func (x *Index[ID]) Len() int {
	x.change.Lock()
	defer x.change.Unlock()
	return len(x.numbers)
}

// Match appends to dst the ID of each rule that matches the event, once each, in no particular
// order. The error is an [*EventError]; Match then returns dst unchanged. Only s refers to the
// event afterwards, until the next call with s.
//
// Match reads the event once and skips fields that no rule names. Its memory and time are
// proportional to the size of the event and of the rules. If many values of the event have to be
// compared with many rules, the time is proportional to values times rules, up to MaxEventWork.
// After s has grown to the size of the events and of the index, Match allocates in one case only: a
// rule has {"cidr": ...}, and a text looks like an address but is not valid.
func (x *Index[ID]) Match(s *Scratch, dst []ID, event []byte) ([]ID, error) {
	v := x.current.Load()
	if err := s.run(v.snap, event); err != nil {
		return dst, err
	}
	for _, number := range s.matched {
		if r := &v.rules[number]; r.pattern != nil {
			dst = append(dst, r.id)
		}
	}
	return dst, nil
}
