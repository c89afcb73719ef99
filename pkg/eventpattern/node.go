package eventpattern

import (
	"maps"
	"slices"
)

// node is a step of a path that rules name.
type node struct {
	owner  *edit
	id     int32
	parent int32
	key    string
	users  int32 // number of fields of conjunctions here or below
	leaves int32 // number of fields of conjunctions here
	// lengths has a bit for each length of the child keys. The last bit means 63 or more. For most
	// keys of most events this check is enough.
	lengths uint64
	few     []child          // the child keys, up to fewChildren
	many    map[string]int32 // all child keys, if there are more
	ownMany *edit            // the edit that may change many
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

// addChild adds a child. e must own the node, as for removeChild.
func (n *node) addChild(e *edit, key string, id int32) {
	n.lengths |= lengthBit(len(key))
	switch {
	case n.many != nil:
		if n.ownMany != e {
			n.many, n.ownMany = maps.Clone(n.many), e
		}
		n.many[key] = id
	case len(n.few) < fewChildren:
		n.few = append(n.few, child{key, id})
	default:
		n.many, n.ownMany = map[string]int32{key: id}, e
		for _, c := range n.few {
			n.many[c.key] = c.id
		}
		n.few = nil
	}
}

func (n *node) removeChild(e *edit, key string) {
	if n.many != nil {
		if n.ownMany != e {
			n.many, n.ownMany = maps.Clone(n.many), e
		}
		delete(n.many, key)
	} else {
		n.few = slices.DeleteFunc(slices.Clone(n.few), func(c child) bool { return c.key == key })
	}
	n.lengths = 0
	for _, c := range n.few {
		n.lengths |= lengthBit(len(c.key))
	}
	for k := range n.many {
		n.lengths |= lengthBit(len(k))
	}
}
