package eventpattern

import (
	"github.com/aviaryhq/aviary/pkg/eventpattern/internal/number"
	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// scan reads the whole event. It stores the values at nodes, and validates the rest. For an invalid
// event it returns false, and s.fault is the error.
func (s *Scratch) scan() bool {
	if len(s.src) > MaxEventBytes {
		s.fail(MaxEventBytes, TooLarge)
		return false
	}
	i := skipBlanks(s.src, 0)
	if i == len(s.src) {
		s.fail(i, Truncated)
		return false
	}
	if s.src[i] != '{' {
		if end := s.skip(i); end >= 0 {
			s.fail(i, NotAnObject)
		}
		return false
	}
	root := s.push(0, kindObject, noValue, i)
	if i = s.object(s.snap.nodes[0], i, root); i < 0 {
		return false
	}
	if i = skipBlanks(s.src, i); i < len(s.src) {
		s.fail(i, InvalidJSON)
		return false
	}
	return true
}

// fail sets s.fault and returns -1, which the functions below return instead of a position.
func (s *Scratch) fail(at int, why Reason) int {
	s.fault = EventError{at, why}
	return -1
}

// broken fails because JSON does not allow the byte at i, or because the event ends there.
func (s *Scratch) broken(i int) int { return s.fail(faultAt(s.src, i)) }

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
	src := s.src
	if s.depth++; s.depth > MaxEventDepth {
		return s.fail(i, TooDeep)
	}
	s.serial++
	serial := s.serial
	i = skipBlanks(src, i+1)
	if i < len(src) && src[i] == '}' {
		s.depth--
		return i + 1
	}
	for {
		if i >= len(src) || src[i] != '"' {
			return s.broken(i)
		}
		start := i + 1
		end, escaped, why := scanText(src, start)
		if why != "" {
			return s.fail(end, why)
		}
		key := src[start:end]
		if escaped {
			s.key, _ = jsontext.AppendDecoded(s.key[:0], key)
			key = s.key
		}
		id := n.child(key)
		if i = end + 1; i >= len(src) || src[i] != ':' {
			if i = skipBlanks(src, i); i >= len(src) || src[i] != ':' {
				return s.broken(i)
			}
		}
		if i++; i < len(src) && src[i] <= ' ' {
			i = skipBlanks(src, i)
		}
		if id == noNode {
			i = s.skip(i)
		} else {
			if s.seen[id] == serial {
				return s.fail(start-1, DuplicateKey)
			}
			s.seen[id] = serial
			i = s.value(s.snap.nodes[id], i, v)
		}
		if i < 0 {
			return i
		}
		if i < len(src) && src[i] <= ' ' {
			i = skipBlanks(src, i)
		}
		switch {
		case i < len(src) && src[i] == ',':
			if i++; i < len(src) && src[i] <= ' ' {
				i = skipBlanks(src, i)
			}
		case i < len(src) && src[i] == '}':
			s.depth--
			return i + 1
		default:
			return s.broken(i)
		}
	}
}

// value reads the value at i, which belongs to the node n and the object parent.
func (s *Scratch) value(n *node, i int, parent int32) int {
	src := s.src
	if i >= len(src) {
		return s.fail(i, Truncated)
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
		return s.skip(i)
	case c == '"':
		return s.text(n, i, parent)
	case c == '-' || c-'0' < 10:
		return s.number(n, i, parent)
	}
	end, k, why := scanLiteral(src, i)
	if why != "" {
		return s.fail(end, why)
	}
	if s.leaf(n, k, parent, i) == noValue {
		return -1
	}
	return end
}

// array reads an array. Its elements are values of the node, and so are the elements of nested
// arrays.
func (s *Scratch) array(n *node, i int, parent int32) int {
	src := s.src
	if s.depth++; s.depth > MaxEventDepth {
		return s.fail(i, TooDeep)
	}
	i = skipBlanks(src, i+1)
	if i < len(src) && src[i] == ']' {
		s.depth--
		return i + 1
	}
	for {
		if i = s.value(n, i, parent); i < 0 {
			return i
		}
		i = skipBlanks(src, i)
		switch {
		case i < len(src) && src[i] == ',':
			i = skipBlanks(src, i+1)
			s.grouped = s.grouped || n.inner()
		case i < len(src) && src[i] == ']':
			s.depth--
			return i + 1
		default:
			return s.broken(i)
		}
	}
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
	start := i + 1
	end, escaped, why := scanText(s.src, start)
	if why != "" {
		return s.fail(end, why)
	}
	v := s.leaf(n, kindString, parent, i)
	if v == noValue {
		return -1
	}
	x := &s.values[v]
	x.from, x.to = uint32(start), uint32(end)
	if escaped {
		x.inBuf, x.from = true, uint32(len(s.buf))
		s.buf, _ = jsontext.AppendDecoded(s.buf, s.src[start:end])
		x.to = uint32(len(s.buf))
	}
	return end + 1
}

func (s *Scratch) number(n *node, i int, parent int32) int {
	end, why := scanNumber(s.src, i)
	if why != "" {
		return s.fail(end, why)
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

// skip validates the value at i and returns the position after it.
func (s *Scratch) skip(i int) int {
	if i >= len(s.src) {
		return s.fail(len(s.src), Truncated)
	}
	switch c := s.src[i]; {
	case c == '"':
		end, _, why := scanText(s.src, i+1)
		if why != "" {
			return s.fail(end, why)
		}
		return end + 1
	case c == '{' || c == '[':
		return s.skipNested(i)
	case c == '-' || c-'0' < 10:
		end, why := scanNumber(s.src, i)
		if why != "" {
			return s.fail(end, why)
		}
		return end
	}
	end, _, why := scanLiteral(s.src, i)
	if why != "" {
		return s.fail(end, why)
	}
	return end
}

// skipNested is skip for objects and arrays. It is not recursive: it keeps one bit for each
// enclosing object or array.
func (s *Scratch) skipNested(i int) int {
	src := s.src
	var objects [MaxEventDepth/64 + 1]uint64 // by depth: 1 for an object, 0 for an array
	depth := 0
	inObject := false
	for {
		// A value begins at i.
		if i < len(src) && (src[i] == '{' || src[i] == '[') {
			if depth++; s.depth+depth > MaxEventDepth {
				return s.fail(i, TooDeep)
			}
			inObject = src[i] == '{'
			setBit(&objects[depth/64], depth%64, inObject)
			closing := src[i] + 2 // '}' or ']'
			if i = skipBlanks(src, i+1); i >= len(src) || src[i] != closing {
				if inObject {
					if i = s.skipKey(i); i < 0 {
						return i
					}
				}
				continue
			}
		} else if i = s.skip(i); i < 0 {
			return i
		}
		// A value has ended, or an empty object or array is about to end.
		for {
			if depth == 0 {
				return i
			}
			if i < len(src) && src[i] <= ' ' {
				i = skipBlanks(src, i)
			}
			if i >= len(src) {
				return s.fail(len(src), Truncated)
			}
			c := src[i]
			if c == ',' {
				i = skipBlanks(src, i+1)
				if inObject {
					if i = s.skipKey(i); i < 0 {
						return i
					}
				}
				break
			}
			if inObject && c != '}' || !inObject && c != ']' {
				return s.fail(i, InvalidJSON)
			}
			i++
			depth--
			inObject = objects[depth/64]>>(depth%64)&1 != 0
		}
	}
}

func setBit(word *uint64, at int, on bool) {
	*word &^= 1 << at
	if on {
		*word |= 1 << at
	}
}

// skipKey validates a key and its colon, and returns the position of the value.
func (s *Scratch) skipKey(i int) int {
	src := s.src
	if i >= len(src) || src[i] != '"' {
		return s.broken(i)
	}
	end, _, why := scanText(src, i+1)
	if why != "" {
		return s.fail(end, why)
	}
	i = skipBlanks(src, end+1)
	if i >= len(src) || src[i] != ':' {
		return s.broken(i)
	}
	return skipBlanks(src, i+1)
}
