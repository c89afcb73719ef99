package eventpattern

import (
	"hash/maphash"
	"slices"
	"strings"
)

// snapshot holds the compiled rules at one time. A snapshot in use never changes: an edit copies
// each table or node before it changes it, and shares the others. Only lists grow in place, after
// the end that older snapshots see. That is safe because edits always start from the newest
// snapshot.
type snapshot struct {
	seed   maphash.Seed
	nodes  []*node // by id; 0 is the root, nil is free
	joins  []join  // by number
	absent []int32 // nodes with rules that require that they have no value

	// Only the writer uses the following fields.
	texts     texts
	freeNodes []int32
	free      []uint32            // numbers
	more      map[uint32][]uint32 // joins of a rule, except the first
}

// join is a conjunction in the index. The fields that checking most candidates needs are in one
// cache line. Reading joinPlan costs several more.
type join struct {
	rule uint32
	// node and only are the remaining check, if it is a single condition that requires a value.
	// They serve only events without arrays on the way. Otherwise node is noNode.
	node int32
	only condition
	*joinPlan
}

type joinPlan struct {
	fields []joinField
	// access is the field by which a match finds the join. It is everyField if every field may be
	// absent: then a match may find the join by any of them.
	access int32
	known  int32   // equal to access if a post proves that this field holds, otherwise noField
	group  int32   // the group of the field access that has the posts
	sole   bool    // the join has one post, and the rule one join
	places []place // the places of wildcards in the lookup
}

const (
	everyField = -1
	noField    = -1
)

type joinField struct {
	only   condition // the only condition of the field, if simple
	simple bool
	absent bool // field.absent
	node   int32
	*field
	path []int32 // nodes from the first below the root to node
}

func newJoinField(f *field, path []int32) joinField {
	j := joinField{field: f, node: path[len(path)-1], absent: f.absent(), path: path}
	if len(f.groups) == 1 && len(f.groups[0]) == 1 {
		j.simple, j.only = true, f.groups[0][0]
	}
	return j
}

// edit prepares the next snapshot.
type edit struct {
	next     *snapshot
	ranges   []*rangeSet // the changed sets, which done must finish
	ownNodes bool
	ownJoins bool
	oldJoins int // number of joins that older snapshots share
}

func newSnapshot() *snapshot {
	return &snapshot{seed: maphash.MakeSeed(), nodes: []*node{{parent: noNode}}, texts: texts{}, more: map[uint32][]uint32{}}
}

func (s *snapshot) edit() *edit {
	next := *s
	return &edit{next: &next, oldJoins: len(s.joins)}
}

func (e *edit) done() *snapshot {
	for _, r := range e.ranges {
		r.finish()
	}
	return e.next
}

// node returns a node that e may change.
func (e *edit) node(id int32) *node {
	if n := e.next.nodes[id]; n.owner == e {
		return n
	}
	n := *e.next.nodes[id]
	n.owner = e
	e.setNode(id, &n)
	return &n
}

func (e *edit) setNode(id int32, n *node) {
	if !e.ownNodes {
		e.next.nodes, e.ownNodes = slices.Clone(e.next.nodes), true
	}
	e.next.nodes[id] = n
}

// nodesOf returns the nodes of a path. It creates missing nodes, and increments their counts of
// fields.
func (e *edit) nodesOf(path []string) []int32 {
	ids := make([]int32, len(path))
	at := int32(0)
	for i, key := range path {
		e.node(at).users++
		id := e.next.nodes[at].child([]byte(key))
		if id == noNode {
			id = e.newNode(at, key)
			e.node(at).addChild(e, key, id)
		}
		ids[i], at = id, id
	}
	n := e.node(at)
	n.users++
	n.leaves++
	return ids
}

func (e *edit) newNode(parent int32, key string) int32 {
	s := e.next
	n := &node{owner: e, parent: parent, key: key}
	if last := len(s.freeNodes) - 1; last >= 0 {
		n.id, s.freeNodes = s.freeNodes[last], s.freeNodes[:last]
		e.setNode(n.id, n)
		return n.id
	}
	n.id = int32(len(s.nodes))
	s.nodes = append(s.nodes, n)
	return n.id
}

// dropField undoes nodesOf.
func (e *edit) dropField(id int32) {
	e.node(id).leaves--
	for id != noNode {
		n := e.node(id)
		n.users--
		if n.users == 0 && n.parent != noNode {
			e.node(n.parent).removeChild(e, n.key)
			e.setNode(id, nil)
			e.next.freeNodes = append(e.next.freeNodes, id)
		}
		id = n.parent
	}
}

// add compiles a pattern and returns the rule's number. The first join has the same number, so that
// a match can fetch data of both at the same time.
func (e *edit) add(p *Pattern) uint32 {
	number := e.newNumber()
	branches := slices.DeleteFunc(slices.Clone(p.branches), func(c conjunction) bool { return !possible(c) })
	for i, c := range branches {
		id := number
		if i > 0 {
			id = e.newNumber()
			e.next.more[number] = append(e.next.more[number], id)
		}
		e.addJoin(id, number, c, len(branches) == 1)
	}
	return number
}

func (e *edit) newNumber() uint32 {
	s := e.next
	if last := len(s.free) - 1; last >= 0 {
		number := s.free[last]
		s.free = s.free[:last]
		return number
	}
	s.joins = append(s.joins, join{})
	return uint32(len(s.joins) - 1)
}

func (e *edit) setJoin(id uint32, j join) {
	if int(id) < e.oldJoins && !e.ownJoins {
		e.next.joins, e.ownJoins = slices.Clone(e.next.joins), true
	}
	e.next.joins[id] = j
}

// possible reports whether any event can match: each field must be able to hold either with a value
// or without one.
func possible(c conjunction) bool {
	return !slices.ContainsFunc(c, func(f *field) bool { return !f.present() && !f.absent() })
}

func (e *edit) addJoin(id, number uint32, c conjunction, alone bool) {
	j := join{rule: number, node: noNode, joinPlan: &joinPlan{fields: make([]joinField, len(c)), known: noField}}
	for i, f := range c {
		j.fields[i] = newJoinField(f, e.nodesOf(f.path))
		j.fields[i].only.text = e.next.texts.one(j.fields[i].only.text)
	}
	e.choose(&j)
	if j.access != everyField {
		f := j.fields[j.access]
		j.sole = alone && len(f.groups[j.group]) == 1
		if len(f.groups) == 1 && !slices.ContainsFunc(f.groups[0], func(c condition) bool { return c.op == opWildcard }) {
			j.known = j.access
		}
	}
	j.shorten()
	e.eachPost(id, &j, (*lookup).add)
	e.setJoin(id, j)
}

// shorten sets node and only.
func (j *join) shorten() {
	left := 0
	for i := range j.fields {
		if int32(i) == j.known {
			continue
		}
		f := &j.fields[i]
		if left++; left > 1 || !f.simple || f.absent {
			j.node = noNode
			return
		}
		j.node, j.only = f.node, f.only
	}
}

// texts keeps one copy of each short text, up to mostTexts of them. Rules with the same text then
// share one copy in the processor's cache. The copies stay after the removal of their rules.
type texts map[string]string

const (
	mostTexts   = 4096
	longestText = 64
)

func (t texts) one(text string) string {
	if same, ok := t[text]; ok {
		return same
	}
	if len(t) < mostTexts && len(text) <= longestText {
		text = strings.Clone(text)
		t[text] = text
	}
	return text
}

// choose selects the field by which a match finds the join: of the fields that require a value, the
// one that the fewest events are estimated to meet.
func (e *edit) choose(j *join) {
	j.access = everyField
	best := 0
	for i, f := range j.fields {
		if f.absent {
			continue
		}
		l := e.next.nodes[f.node].lookup
		for g, group := range f.groups {
			if hasAbsent(group) {
				continue
			}
			cost := 0
			for k := range group {
				cost += l.cost(&group[k])
			}
			if j.access == everyField || cost < best {
				j.access, j.group, best = int32(i), int32(g), cost
			}
		}
	}
}

// lookupChange is the method add or remove of lookup.
type lookupChange func(l *lookup, e *edit, c *condition, exact, rough post, places *[]place)

// eachPost calls do for each condition by which a match finds the join.
func (e *edit) eachPost(id uint32, j *join, do lookupChange) {
	exact, rough := makePost(id, 0), makePost(id, 0)
	if len(j.fields) == 1 && len(j.fields[0].groups) == 1 {
		exact = makePost(j.rule, postSure)
	}
	if j.sole {
		exact |= postSole
	}
	if j.access != everyField {
		f := &j.fields[j.access]
		e.postGroup(f.node, f.groups[j.group], exact, rough, &j.places, do)
		return
	}
	// Every field may be absent. If no field has a value, the absence of the first one finds the
	// join. Otherwise a value of any field finds it.
	absent := condition{op: opAbsent}
	e.postGroup(j.fields[0].node, []condition{absent}, exact, rough, &j.places, do)
	for i := range j.fields {
		f := &j.fields[i]
		if !f.present() {
			continue
		}
		var values []*condition
		for k := range f.groups[0] {
			if c := &f.groups[0][k]; c.op != opAbsent {
				values = append(values, c)
			}
		}
		l := e.lookup(f.node)
		for _, c := range values {
			do(l, e, c, exact, rough, &j.places)
		}
	}
}

func (e *edit) lookup(id int32) *lookup {
	n := e.node(id)
	n.lookup = n.lookup.edited(e)
	return n.lookup
}

func (e *edit) postGroup(id int32, group []condition, exact, rough post, places *[]place, do lookupChange) {
	l := e.lookup(id)
	before := len(l.absent) > 0
	for k := range group {
		do(l, e, &group[k], exact, rough, places)
	}
	if after := len(l.absent) > 0; after != before {
		without := slices.DeleteFunc(slices.Clone(e.next.absent), func(n int32) bool { return n == id })
		if after {
			without = append(without, id)
		}
		e.next.absent = without
	}
}

// remove removes a rule.
func (e *edit) remove(number uint32) {
	s := e.next
	for _, id := range append([]uint32{number}, s.more[number]...) {
		if j := s.joins[id]; j.joinPlan != nil { // a rule that no event can match has no join
			e.removeJoin(id, &j)
		}
		s.free = append(s.free, id)
	}
	delete(s.more, number)
}

func (e *edit) removeJoin(id uint32, j *join) {
	e.eachPost(id, j, (*lookup).remove)
	for _, f := range j.fields {
		if l := e.next.nodes[f.node].lookup; l != nil && l.count == 0 {
			e.node(f.node).lookup = nil
		}
	}
	for _, f := range j.fields {
		e.dropField(f.node)
	}
	e.setJoin(id, join{})
}
