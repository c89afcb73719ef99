package eventpattern

import "maps"

// node is a step of a path that rules name.
type node struct {
	owner  *edit
	id     int32
	leaves int32 // how many fields of clauses end here
	// lengths has a bit for each length of the child keys. The last bit means 63 or more. For most
	// keys of most events this check is enough.
	lengths uint64
	few     []child          // the child keys, up to fewChildren
	many    map[string]int32 // all child keys, if there are more
	lookup  *lookup          // nil: matches find the rules with a field here by other fields
}

type child struct {
	key string
	id  int32
}

const (
	fewChildren = 8
	noNode      = -1
)

func lengthBit(n int) uint64 { return 1 << min(uint(n), 63) }

// child returns the child node of a key, or noNode.
func (n *node) child(key []byte) int32 {
	if n.lengths&lengthBit(len(key)) == 0 {
		return noNode
	}
	if n.many != nil {
		if id, ok := n.many[string(key)]; ok {
			return id
		}
		return noNode
	}
	for i := range n.few {
		if n.few[i].key == string(key) {
			return n.few[i].id
		}
	}
	return noNode
}

func (n *node) inner() bool { return n.lengths != 0 }

// edited returns a copy of n that e may change.
func (n *node) edited(e *edit) *node {
	c := *n
	c.owner, c.many = e, maps.Clone(n.many)
	return &c
}

func (n *node) addChild(key string, id int32) {
	n.lengths |= lengthBit(len(key))
	if n.many == nil && len(n.few) < fewChildren {
		n.few = append(n.few, child{key, id})
		return
	}
	if n.many == nil {
		n.many = map[string]int32{}
		for _, c := range n.few {
			n.many[c.key] = c.id
		}
	}
	n.many[key] = id
}
