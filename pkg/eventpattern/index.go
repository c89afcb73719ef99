package eventpattern

import (
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
}

// view is the data that a match uses.
type view[ID comparable] struct {
	snap *snapshot
	ids  []ID // by rule number
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
	index  *Index[ID]
	edit   *edit
	ids    []ID
	ownIDs bool
}

// Update makes all the changes of f in one step: a match sees none of them or all. One Update is
// the fastest way to add thousands of rules. f must not call Len or a method that changes the
// index. If f panics, the changes before the panic take effect.
func (x *Index[ID]) Update(f func(*Change[ID])) {
	x.change.Lock()
	defer x.change.Unlock()
	v := x.current.Load()
	c := &Change[ID]{index: x, edit: v.snap.edit(), ids: v.ids}
	defer func() { x.current.Store(&view[ID]{c.edit.done(), c.ids}) }()
	f(c)
}

// Set adds a rule. It replaces a rule with the same ID.
func (c *Change[ID]) Set(id ID, p *Pattern) {
	c.Remove(id)
	number := c.edit.add(p)
	c.index.numbers[id] = number
	if int(number) < len(c.ids) {
		c.setID(number, id)
		return
	}
	var none ID
	for len(c.ids) < int(number) {
		c.ids = append(c.ids, none) // numbers of joins have no ID
	}
	c.ids = append(c.ids, id)
}

// Remove removes a rule. It reports whether the rule existed.
func (c *Change[ID]) Remove(id ID) bool {
	number, ok := c.index.numbers[id]
	if !ok {
		return false
	}
	delete(c.index.numbers, id)
	c.edit.remove(number)
	var none ID
	c.setID(number, none)
	return true
}

func (c *Change[ID]) setID(number uint32, id ID) {
	if !c.ownIDs {
		c.ids, c.ownIDs = append(make([]ID, 0, len(c.ids)+1), c.ids...), true
	}
	c.ids[number] = id
}

// Set is an [Index.Update] that sets one rule.
func (x *Index[ID]) Set(id ID, p *Pattern) { x.Update(func(c *Change[ID]) { c.Set(id, p) }) }

// Remove is an [Index.Update] that removes one rule.
func (x *Index[ID]) Remove(id ID) (found bool) {
	x.Update(func(c *Change[ID]) { found = c.Remove(id) })
	return found
}

// Len returns the number of rules.
func (x *Index[ID]) Len() int {
	x.change.Lock()
	defer x.change.Unlock()
	return len(x.numbers)
}

// Match appends to dst the ID of each rule that matches the event, once each, in no particular
// order. The error is an [*EventError]; Match then returns dst unchanged. Only s refers to the
// event afterwards, until the next call with s.
func (x *Index[ID]) Match(s *Scratch, dst []ID, event []byte) ([]ID, error) {
	v := x.current.Load()
	if err := s.run(v.snap, event); err != nil {
		return dst, err
	}
	for _, number := range s.matched {
		dst = append(dst, v.ids[number])
	}
	return dst, nil
}
