package eventpattern

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
