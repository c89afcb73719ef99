package eventpattern

import (
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/number"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// scan reads the whole event. It stores the values at nodes, and validates the rest. For an invalid
// event it returns false, and s.fault is the error.
func (s *Scratch) scan() bool {
	s.json.Reset(s.src)
	s.json.MaxDepth = MaxEventDepth
	if s.json.End(s.event()) < 0 {
		s.fault = EventError{s.json.At, Reason(s.json.Fault)}
		return false
	}
	return true
}

// fail sets the fault and returns -1, which the functions below return instead of a position.
func (s *Scratch) fail(at int, why Reason) int { return s.json.Fail(at, jsontext.Fault(why)) }

func (s *Scratch) event() int {
	if len(s.src) > MaxEventBytes {
		return s.fail(MaxEventBytes, TooLarge)
	}
	i := s.json.Space(0)
	if i < len(s.src) && s.src[i] != '{' {
		if end := s.json.Value(i); end < 0 {
			return end
		}
		return s.fail(i, NotAnObject)
	}
	if i == len(s.src) {
		return s.json.Unexpected(i)
	}
	return s.object(s.snap.nodes[0], i, s.push(0, kindObject, noValue, i))
}

// push stores a value of a node as a child of another value.
func (s *Scratch) push(node int32, k kind, parent int32, at int) int32 {
	v := int32(len(s.values))
	if v >= MaxEventValues {
		s.fail(at, TooManyValues)
		return noValue
	}
	next := int32(noValue)
	if parent != noValue {
		next = s.values[parent].first
		s.values[parent].first = v
	}
	s.values = append(s.values, value{node: node, kind: k, first: noValue, next: next, same: noValue})
	return v
}

// object reads the object at i, whose value is v, and returns the position after it.
func (s *Scratch) object(n *node, i int, v int32) int {
	s.serial++
	serial := s.serial
	i, more := s.json.Open(i)
	for more {
		at := i
		key, start := s.json.Key(i)
		if start < 0 {
			return start
		}
		if id := n.child(key); id == noNode {
			i = s.json.Value(start)
		} else {
			if s.seen[id] == serial {
				return s.fail(at, DuplicateKey)
			}
			s.seen[id] = serial
			i = s.value(s.snap.nodes[id], start, v)
		}
		if i < 0 {
			return i
		}
		i, more = s.json.Next(i, '}')
	}
	return i
}

// value reads the value at i, which belongs to the node n and the object parent.
func (s *Scratch) value(n *node, i int, parent int32) int {
	src := s.src
	if i >= len(src) {
		return s.json.Unexpected(i)
	}
	c := src[i]
	switch {
	case c == '[':
		return s.array(n, i, parent)
	case c == '{' && n.inner():
		v := s.push(n.id, kindObject, parent, i)
		if v == noValue {
			return -1
		}
		return s.object(n, i, v)
	case c == '{' || n.leaves == 0:
		return s.json.Value(i)
	case c == '"':
		return s.text(n, i, parent)
	case c == '-' || c-'0' < 10:
		return s.number(n, i, parent)
	}
	end := s.json.Literal(i)
	if end < 0 || s.leaf(n, literalKind(c), parent, i) == noValue {
		return -1
	}
	return end
}

// literalKind returns the kind of a literal by its first character.
func literalKind(c byte) kind {
	switch c {
	case 't':
		return kindTrue
	case 'f':
		return kindFalse
	}
	return kindNull
}

// array reads an array. Its elements are values of the node, and so are the elements of nested
// arrays.
func (s *Scratch) array(n *node, i int, parent int32) int {
	i, more := s.json.Open(i)
	for more {
		if i = s.value(n, i, parent); i < 0 {
			return i
		}
		if i, more = s.json.Next(i, ']'); more {
			s.grouped = s.grouped || n.inner()
		}
	}
	return i
}

// leaf stores a string, number or literal.
func (s *Scratch) leaf(n *node, k kind, parent int32, at int) int32 {
	v := s.push(n.id, k, parent, at)
	if v == noValue {
		return v
	}
	h := &s.heads[n.id]
	if h.round != s.round {
		*h = head{s.round, noValue}
		s.touched = append(s.touched, n.id)
	}
	s.values[v].same, h.first = h.first, v
	return v
}

func (s *Scratch) text(n *node, i int, parent int32) int {
	end, escaped := s.json.String(i)
	if end < 0 {
		return end
	}
	v := s.leaf(n, kindString, parent, i)
	if v == noValue {
		return -1
	}
	x := &s.values[v]
	x.from, x.to = uint32(i+1), uint32(end-1)
	if escaped {
		x.inBuf, x.from = true, uint32(len(s.buf))
		s.buf, _ = jsontext.AppendDecoded(s.buf, s.src[i+1:end-1])
		x.to = uint32(len(s.buf))
	}
	return end
}

func (s *Scratch) number(n *node, i int, parent int32) int {
	end := s.json.Number(i)
	if end < 0 {
		return end
	}
	v := s.leaf(n, kindNumber, parent, i)
	if v == noValue {
		return -1
	}
	x := &s.values[v]
	x.inBuf, x.from = true, uint32(len(s.buf))
	buf, ok := number.AppendKey(s.buf, s.src[i:end])
	if !ok {
		return s.fail(i, NumberTooLong)
	}
	s.buf = buf
	x.to = uint32(len(s.buf))
	return end
}
