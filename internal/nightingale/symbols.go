package nightingale

import (
	"encoding/binary"
	"hash/maphash"
	"math"
	"unicode/utf8"
)

// form says how a batch holds the labels of its series, and what is made of them when.
// The zero form is texts, with the keys.
//
// In the symbolic form labels are references to b.symbols, in b.refs: of a 2.0 request
// the body's own, of a 1.0 request those that intern gives. Only labels with nothing
// wrong are in it, sorted and of different names; those of other series are texts, as
// in the zero form. A reference is checked with what is known of its symbol, so each
// text is looked at once, however often it is used.
type form struct {
	symbolic bool // references for the series whose labels have nothing wrong
	lean     bool // and no texts for those
	lateKeys bool // keys are made where they are needed, not by validate
}

// What is known of a symbol: its length above two bits.
const (
	usableName  = 1 << 0
	usableValue = 1 << 1
	lengthShift = 2
	longSymbol  = 1 << 28 // not usable, whatever the limits
)

// What the symbolic form takes in memory.
const (
	refBytes  = 4
	slotBytes = 8
	infoBytes = 8                                   // of a symbol: what is known of it, and its number in a message
	slotShare = slotBytes * 8 / 3                   // of a symbol: at most, the table is three eighths full after it grew
	internSum = symbolBytes + infoBytes + slotShare // of a symbol that is in the table
)

// symbolTable finds a symbol by its text. The seed keeps senders from choosing texts
// that all have one hash.
type symbolTable struct {
	seed   maphash.Seed
	seeded bool
	slots  []slot // a power of two of them
	count  int    // of those in use
	known  int    // symbols that were looked at: the first ones of the batch

	// recent are references of values by their last bytes: where a label has few values,
	// it saves the hash. Any may give way to any.
	recent [1 << recentBits]uint32
}

const recentBits = 10

type slot struct {
	hash uint32
	ref  uint32 // 0 where the slot is free: the empty symbol needs none
}

// leastSlots is the size of a table at first.
const leastSlots = 1 << 10

// reset empties the table. Its size is what the last request needed.
func (t *symbolTable) reset() {
	if t.known == 0 {
		return
	}
	size := leastSlots
	for size*3 < t.count*4 {
		size *= 2
	}
	clear(t.recent[:])
	if t.count, t.known = 0, 0; cap(t.slots) < size {
		t.slots = nil
		return
	}
	t.slots = t.slots[:size]
	clear(t.slots)
}

// grow doubles the table.
func (t *symbolTable) grow() {
	old := t.slots
	t.slots = make([]slot, max(2*len(old), leastSlots))
	mask := uint32(len(t.slots) - 1)
	for _, s := range old {
		if s.ref == 0 {
			continue
		}
		at := s.hash & mask
		for t.slots[at].ref != 0 {
			at = (at + 1) & mask
		}
		t.slots[at] = s
	}
}

// find returns the place of a text, free or in use.
func (t *symbolTable) find(symbols []string, text string) (at, hash uint32) {
	if t.count*4 >= len(t.slots)*3 {
		if !t.seeded {
			t.seed, t.seeded = maphash.MakeSeed(), true
		}
		t.grow()
	}
	hash = uint32(maphash.String(t.seed, text))
	mask := uint32(len(t.slots) - 1)
	for at = hash & mask; ; at = (at + 1) & mask {
		if s := t.slots[at]; s.ref == 0 || s.hash == hash && symbols[s.ref] == text {
			return at, hash
		}
	}
}

// intern returns the reference of a text, which is added to the symbols where it is not
// among them.
func (b *batch) intern(text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	if len(b.symbols) == 0 {
		if err := b.beginSymbols(); err != nil {
			return 0, err
		}
	}
	t := &b.table
	if t.known < len(b.symbols) {
		if err := b.index(); err != nil {
			return 0, err
		}
	}
	at, hash := t.find(b.symbols, text)
	if ref := t.slots[at].ref; ref != 0 {
		return ref, nil
	}
	if err := b.elements.charge(internSum); err != nil {
		return 0, err
	}
	ref := uint32(len(b.symbols))
	b.addSymbol(text)
	t.slots[at] = slot{hash, ref}
	t.count++
	t.known = len(b.symbols)
	return ref, nil
}

// index puts the symbols that a body has into the table. That of a 2.0 request is only
// needed when it has other texts, too, as the labels of exemplars.
func (b *batch) index() error {
	t := &b.table
	if err := b.elements.charge((len(b.symbols) - t.known) * slotShare); err != nil {
		return err
	}
	for ref := t.known; ref < len(b.symbols); ref++ {
		if b.symbols[ref] == "" {
			continue
		}
		if at, hash := t.find(b.symbols, b.symbols[ref]); t.slots[at].ref == 0 {
			t.slots[at] = slot{hash, uint32(ref)}
			t.count++
		}
	}
	t.known = len(b.symbols)
	return nil
}

func (b *batch) addSymbol(text string) {
	b.symbols = append(b.symbols, text)
	b.info = append(b.info, b.bounds.info(text))
	b.symbolBytes += len(text)
}

// labelBounds are the limits of labels.
type labelBounds struct{ name, value, labels int }

func boundsOf(l *Limits) labelBounds {
	return labelBounds{int(l.LabelNameBytes), int(l.LabelValueBytes), l.LabelsPerSeries}
}

// info looks at a symbol.
func (l labelBounds) info(text string) uint32 {
	if !utf8.ValidString(text) {
		return 0
	}
	return l.lengthInfo(text)
}

// lengthInfo does, at one that is known to be UTF-8.
func (l labelBounds) lengthInfo(text string) uint32 {
	n := len(text)
	if n == 0 || n >= longSymbol {
		return 0
	}
	known := uint32(n) << lengthShift
	if n <= l.name {
		known |= usableName
	}
	if n <= l.value {
		known |= usableValue
	}
	return known
}

// beginSymbols adds the first symbol, which is empty, where a body has none.
func (b *batch) beginSymbols() error {
	if err := b.elements.charge(symbolBytes + infoBytes); err != nil {
		return err
	}
	b.addSymbol("")
	b.table.known = 1
	return nil
}

// plainRefsV1 does what plainLabelsV1 does, with references. Labels are mostly those of
// the series before, one by one: then a look at their bytes is all that is needed, and
// where only the value is another, the name is known. known tells that the labels are
// usable, which this may have shown.
func (b *batch) plainRefsV1(src []byte) (rest []byte, known bool, err error) {
	before, raw := of(b.refs, b.ordered), b.orderedRaw
	if known = len(raw) > 0; !known {
		before = nil
	}
	for len(src) >= 6 && src[0] == 1<<3|2 && src[1] < 0x80 {
		field, end := src, 2+int(src[1])
		if len(src) < end || end < 6 || field[2] != 1<<3|2 || field[3] >= 0x80 {
			break
		}
		if err = b.elements.charge(2 * refBytes); err != nil {
			return src, false, err
		}
		var n, v uint32
		sameName := false
		if len(before) >= 2 {
			n, v, before = before[0], before[1], before[2:]
			size := 2 + int(raw[1])
			if size == end && sameEnd(raw[:size], field[:end]) && string(raw[2:size]) == string(field[2:end]) {
				b.refs = append(b.refs, n, v)
				src, raw = src[end:], raw[size:]
				continue
			}
			sameName = raw[3] == field[3] && 4+int(field[3]) <= end && sameBegin(raw[4:], field[4:], int(field[3]))
			raw = raw[size:]
		} else {
			known = false
		}
		value := 4 + int(field[3]) // where its tag stands
		if value+2 > end || field[value] != 2<<3|2 || value+2+int(field[value+1]) != end {
			break
		}
		if !sameName {
			known = false
			if n, err = b.intern(text(field[4:value])); err != nil {
				return src, false, err
			}
		}
		if v, err = b.internValue(field[:end], value+2); err != nil {
			return src, false, err
		}
		known = known && b.info[v]&usableValue != 0
		b.refs = append(b.refs, n, v)
		src = src[end:]
	}
	return src, known && len(before) == 0, nil
}

// sameEnd reports whether two labels of one length may be the same: it looks at their
// last bytes, where most that differ do.
func sameEnd(a, b []byte) bool {
	n := len(a)
	return n < 8 || n != len(b) || binary.LittleEndian.Uint64(a[n-8:]) == binary.LittleEndian.Uint64(b[n-8:])
}

// sameBegin reports whether the first n bytes of both are the same, where both have so
// many. Most names are short.
func sameBegin(a, b []byte, n int) bool {
	if n <= 8 && len(a) >= 8 && len(b) >= 8 {
		return (binary.LittleEndian.Uint64(a)^binary.LittleEndian.Uint64(b))<<(64-8*n) == 0
	}
	return string(a[:n]) == string(b[:n])
}

// internValue returns the reference of the value that a label ends with.
func (b *batch) internValue(label []byte, from int) (uint32, error) {
	value := text(label[from:])
	if len(label) < 8 {
		return b.intern(value)
	}
	const mix = 0x9e3779b97f4a7c15 // spreads what differs in few bits
	recent := &b.table.recent[binary.LittleEndian.Uint64(label[len(label)-8:])*mix>>(64-recentBits)]
	if ref := *recent; ref != 0 && b.symbols[ref] == value {
		return ref, nil
	}
	ref, err := b.intern(value)
	*recent = ref
	return ref, err
}

// addPair appends the references of a label's name and value.
func (b *batch) addPair(name, value string) error {
	if err := b.elements.charge(2 * refBytes); err != nil {
		return err
	}
	n, err := b.intern(name)
	if err != nil {
		return err
	}
	v, err := b.intern(value)
	if err == nil {
		b.refs = append(b.refs, n, v)
	}
	return err
}

// usable reports whether a series' references are labels with nothing wrong: known,
// in pairs, sorted, of different names, with a metric's name, and within the limits.
// bytes is what they refer to, which has 31 bits.
func (b *batch) usable(refs []uint32) (bytes int, ok bool) {
	if len(refs) == 0 || len(refs)%2 != 0 || len(refs)/2 > b.bounds.labels {
		return 0, false
	}
	info, before := b.info, of(b.refs, b.ordered)
	same := len(before) == len(refs)
	names, values := uint32(usableName), uint32(usableValue)
	for i := 0; i+1 < len(refs); i += 2 {
		n, v := refs[i], refs[i+1]
		if uint(n) >= uint(len(info)) || uint(v) >= uint(len(info)) {
			return 0, false
		}
		same = same && before[i] == n
		name, value := info[n], info[v]
		names, values = names&name, values&value
		bytes += int(name>>lengthShift) + int(value>>lengthShift)
	}
	return bytes, names != 0 && values != 0 && bytes <= math.MaxInt32 && (same || b.sortedNames(refs))
}

// sortedNames reports whether names rise, and a metric's name is among them.
func (b *batch) sortedNames(refs []uint32) bool {
	named := false
	for i := 0; i < len(refs); i += 2 {
		name := b.symbols[refs[i]]
		if i > 0 && b.symbols[refs[i-2]] >= name {
			return false
		}
		named = named || name == nameLabel
	}
	return named
}

// endRefs ends the references of a series, and keeps them where they are usable.
func (b *batch) endRefs(s *series) bool {
	s.refs = upTo(s.refs, b.refs)
	bytes, ok := b.usable(b.refs[s.refs.from:])
	if !ok {
		return false
	}
	s.labelBytes = int32(bytes)
	b.ordered, b.orderedBytes = s.refs, s.labelBytes
	return true
}

// endRefsV1 ends the labels of a series of a 1.0 request, which src begins with. known
// tells that they are usable.
func (b *batch) endRefsV1(s *series, src []byte, known bool) error {
	if known {
		s.refs = upTo(s.refs, b.refs)
		s.labelBytes, b.ordered = s.raw.labels, s.refs
	} else if known = b.endRefs(s); !known {
		if err := b.spell(s); err != nil {
			return err
		}
		b.dropRefs(s)
		return nil
	}
	if b.orderedRaw = nil; s.raw.plain {
		b.orderedRaw = src[:s.raw.labels]
	}
	if b.form.lean {
		return nil
	}
	return b.spell(s)
}

// dropRefs leaves the series its texts alone. Nothing was added to the references since.
func (b *batch) dropRefs(s *series) {
	b.refs = b.refs[:s.refs.from]
	s.refs = extent{}
}

// spell makes texts of a series' references, which are of symbols that exist.
func (b *batch) spell(s *series) error {
	refs := of(b.refs, s.refs)
	if err := b.elements.charge(len(refs) / 2 * labelBytes); err != nil {
		return err
	}
	s.labels = mark(b.labels)
	b.labels = b.appendTexts(b.labels, refs)
	s.labels = upTo(s.labels, b.labels)
	return nil
}

func (b *batch) appendTexts(dst []label, refs []uint32) []label {
	for i := 0; i+1 < len(refs); i += 2 {
		dst = append(dst, label{b.symbols[refs[i]], b.symbols[refs[i+1]]})
	}
	return dst
}

// labelsOf returns a series' labels, in whatever form they are. Those of the lean form
// are made for it.
func (b *batch) labelsOf(s *series) []label {
	if s.labels.len() == 0 && s.refs.len() > 0 {
		return b.appendTexts(make([]label, 0, s.refs.len()/2), of(b.refs, s.refs))
	}
	return of(b.labels, s.labels)
}

// appendRefFields writes what appendLabelFields does, of references.
func (b *batch) appendRefFields(dst []byte, refs []uint32) []byte {
	for i := 0; i+1 < len(refs); i += 2 {
		dst = appendLabelField(dst, b.symbols[refs[i]], b.symbols[refs[i+1]])
	}
	return dst
}
