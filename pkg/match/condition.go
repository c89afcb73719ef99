package match

// kind is the type of an event's value.
type kind uint8

const (
	kindString kind = iota
	kindNumber
	kindTrue
	kindFalse
	kindNull
	kindObject
	kindArray
)

// op is what a condition does.
type op uint8

const (
	opExact op = iota
	opFoldedExact
	opPrefix
	opFoldedPrefix
	opSuffix
	opFoldedSuffix
	opWildcard
	opRange
	opNetwork
	opAnythingBut // of the conditions in but; of none: the value is there
	opAbsent
)

// condition is one alternative of a field. It is immutable, and small, because a match reads many.
type condition struct {
	op   op
	kind kind   // of opExact
	mark uint32 // of the text: where it differs from that of a value, the texts differ
	text string // a string, or the key of a number; folded where op says so
	more *operand
}

// operand is what an operator takes that is no text.
type operand struct {
	but       []condition
	wild      *wildcard
	low, high bound
	net       network
}

// fewBut is an operand with its conditions beside it in memory.
type fewBut struct {
	operand
	few [2]condition
}

func newButOperand(but []condition) *operand {
	f := &fewBut{}
	if len(but) > len(f.few) {
		return &operand{but: but}
	}
	f.but = f.few[:copy(f.few[:], but)]
	return &f.operand
}

// markOf is the length and some bytes of a text.
func markOf[T string | []byte](text T) uint32 {
	n := len(text)
	if n < 2 {
		if n == 0 {
			return 0
		}
		return uint32(text[0])<<8 | 1
	}
	return uint32(text[n-1])<<24 | uint32(text[n-2])<<16 | uint32(text[0])<<8 | uint32(uint8(n))
}

func exactly(k kind, text string) condition {
	return condition{op: opExact, kind: k, mark: markOf(text), text: text}
}

// bound is one end of a range of numbers. An end without a key is open to infinity.
type bound struct {
	key       string
	inclusive bool
}

// matches reports whether a value of an event meets the condition. data is the text of a string, the key of a number, and nothing for literals.
func (s *Scratch) matches(c *condition, k kind, data []byte) bool {
	s.left--
	switch c.op {
	case opExact:
		return k == c.kind && c.mark == markOf(data) && string(data) == c.text
	case opAnythingBut:
		return c.more == nil || !s.anyMatches(c.more.but, k, data)
	case opAbsent:
		return false
	case opRange:
		s.left--
		return k == kindNumber && c.holds(data)
	}
	if k != kindString {
		return false
	}
	switch c.op {
	case opFoldedExact, opFoldedPrefix, opFoldedSuffix:
		s.left -= min(len(data), len(c.text)) / foldedPerStep
	case opNetwork:
		s.left -= addressSteps
	}
	switch c.op {
	case opFoldedExact:
		return foldedEqual(data, c.text)
	case opPrefix:
		return len(data) >= len(c.text) && string(data[:len(c.text)]) == c.text
	case opFoldedPrefix:
		_, ok := foldedPrefix(data, c.text)
		return ok
	case opSuffix:
		return len(data) >= len(c.text) && string(data[len(data)-len(c.text):]) == c.text
	case opFoldedSuffix:
		return foldedSuffix(data, c.text)
	case opWildcard:
		if !c.more.wild.hasEnds(data) {
			return false
		}
		s.left -= len(data) / searchedPerStep
		return c.more.wild.hasMiddle(data)
	case opNetwork:
		addr, ok := parseAddress(data)
		return ok && c.more.net.contains(addr)
	}
	return false
}

// holds reports whether the range holds the number with the key.
func (c *condition) holds(key []byte) bool {
	low, high := &c.more.low, &c.more.high
	if low.key != "" && (string(key) < low.key || !low.inclusive && string(key) == low.key) {
		return false
	}
	return high.key == "" || string(key) < high.key || high.inclusive && string(key) == high.key
}

// overlaps reports whether some number may be in both ranges.
func (c *condition) overlaps(other *condition) bool {
	below := func(high, low bound) bool { return high.key != "" && low.key != "" && high.key < low.key }
	return !below(c.more.high, other.more.low) && !below(other.more.high, c.more.low)
}

// field is the alternatives that a pattern gives for one path. It is immutable.
type field struct {
	path    []string
	pointer string // of the list of alternatives
	// groups are the lists of alternatives that one value has to meet. There are several where $or names a path that is named beside it too.
	groups [][]condition
}

// absent reports whether the field holds where the event has no value.
func (f *field) absent() bool {
	for _, g := range f.groups {
		if !hasAbsent(g) {
			return false
		}
	}
	return true
}

func hasAbsent(group []condition) bool {
	for i := range group {
		if group[i].op == opAbsent {
			return true
		}
	}
	return false
}

// present reports whether the field may hold for some value.
func (f *field) present() bool {
	for _, g := range f.groups {
		some := false
		for i := range g {
			some = some || g[i].op != opAbsent
		}
		if !some {
			return false
		}
	}
	return true
}

func (s *Scratch) fieldMatches(f *field, k kind, data []byte) bool {
	for _, g := range f.groups {
		if !s.anyMatches(g, k, data) {
			return false
		}
	}
	return true
}

// conjunction is fields that all have to hold, ordered by path.
type conjunction []*field
