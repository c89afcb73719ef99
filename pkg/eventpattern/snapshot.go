package eventpattern

import (
	"slices"
	"unique"
)

// snapshot holds the compiled rules at one time. A snapshot in use never changes: an edit copies
// each lookup or node before it changes it, and shares the others. Only lists grow in place, after
// the end that older snapshots see. That is safe because edits always start from the newest
// snapshot.
type snapshot struct {
	nodes   []*node   // by id; 0 is the root
	clauses []clause  // by number
	rules   uint32    // all numbers of rules are lower
	always  []posting // of clauses that need no value: every event may match them
}

// clause is a conjunction in the index. Checking most candidates needs only the fields that are
// in one cache line. Reading clausePlan costs several more.
type clause struct {
	rule uint32
	// node and only are the remaining check, if it is a single condition that requires a value.
	// They serve only events without arrays on the way. Otherwise node is noNode.
	node int32
	only condition
	*clausePlan
}

type clausePlan struct {
	fields []clauseField
	known  int32 // the field that a posting proves, or noField
}

const noField = -1

type clauseField struct {
	only   condition // the only condition of the field, if simple
	simple bool
	absent bool // field.absent
	node   int32
	*field
	path []int32 // nodes from the first below the root to node
}

// edit prepares the next snapshot.
type edit struct {
	next     *snapshot
	ranges   []*rangeSet // the changed sets, which done must finish
	ownNodes bool
}

func newSnapshot() *snapshot { return &snapshot{nodes: []*node{{}}} }

func (s *snapshot) edit() *edit {
	next := *s
	return &edit{next: &next}
}

func (e *edit) done() *snapshot {
	for _, r := range e.ranges {
		r.finish()
	}
	next := e.next
	*e = edit{} // what it owns refers to it, and must not keep the snapshots of earlier changes
	return next
}

// node returns a node that e may change.
func (e *edit) node(id int32) *node {
	n := e.next.nodes[id]
	if n.owner == e {
		return n
	}
	if !e.ownNodes {
		e.next.nodes, e.ownNodes = slices.Clone(e.next.nodes), true
	}
	n = n.edited(e)
	e.next.nodes[id] = n
	return n
}

// nodesOf returns the nodes of a path. It creates missing nodes.
func (e *edit) nodesOf(path []string) []int32 {
	ids := make([]int32, len(path))
	at := int32(0)
	for i, key := range path {
		id := e.next.nodes[at].child([]byte(key))
		if id == noNode {
			id = int32(len(e.next.nodes))
			e.next.nodes = append(e.next.nodes, &node{owner: e, id: id})
			e.node(at).addChild(key, id)
		}
		ids[i], at = id, id
	}
	e.node(at).leaves++
	return ids
}

// add compiles the pattern of a rule with the next number.
func (e *edit) add(rule uint32, p *Pattern) {
	e.next.rules = rule + 1
	for _, c := range p.branches {
		e.addClause(rule, c, len(p.branches) == 1)
	}
}

func (e *edit) addClause(rule uint32, conj conjunction, only bool) {
	id := uint32(len(e.next.clauses))
	c := clause{rule: rule, clausePlan: &clausePlan{fields: e.clauseFields(conj), known: noField}}
	if field, list := e.choose(c.fields); field == noField {
		e.next.always = append(e.next.always, makePosting(id, 0))
	} else {
		f := &c.fields[field]
		n := e.node(f.node)
		n.lookup = n.lookup.edited(e)
		proven := len(f.groups) == 1
		for i := range list {
			p := makePosting(id, 0)
			if !list[i].proven() {
				proven = false
			} else if len(c.fields) == 1 && len(f.groups) == 1 {
				p = makePosting(rule, postingSure)
			}
			if only && len(list) == 1 && list[0].op == opExact {
				p |= postingSole
			}
			n.lookup.add(e, &list[i], p)
		}
		if proven {
			c.known = int32(field)
		}
	}
	c.shorten()
	e.next.clauses = append(e.next.clauses, c)
}

func (e *edit) clauseFields(conj conjunction) []clauseField {
	fields := make([]clauseField, len(conj))
	for i, f := range conj {
		path := e.nodesOf(f.path)
		fields[i] = clauseField{field: f, node: path[len(path)-1], absent: f.absent(), path: path}
		if len(f.groups) == 1 && len(f.groups[0]) == 1 {
			fields[i].simple, fields[i].only = true, f.groups[0][0]
			// Rules often share texts. One copy of them stays in the processor's cache.
			fields[i].only.text = unique.Make(fields[i].only.text).Value()
		}
	}
	return fields
}

// shorten sets node and only.
func (c *clause) shorten() {
	c.node = noNode
	left := 0
	for i := range c.fields {
		if int32(i) == c.known {
			continue
		}
		f := &c.fields[i]
		if left++; left > 1 || !f.simple || f.absent {
			c.node = noNode
			return
		}
		c.node, c.only = f.node, f.only
	}
}

// choose selects the list of alternatives by which a match finds the clause: of the lists that
// require a value, the one that the fewest events are estimated to meet. It returns noField if no
// field requires a value.
func (e *edit) choose(fields []clauseField) (field int, list []condition) {
	field = noField
	best := 0
	for i, f := range fields {
		l := e.next.nodes[f.node].lookup
		for _, group := range f.groups {
			if hasAbsent(group) {
				continue
			}
			cost := 0
			for k := range group {
				cost += l.cost(&group[k])
			}
			if field == noField || cost < best {
				field, list, best = i, group, cost
			}
		}
	}
	return field, list
}
