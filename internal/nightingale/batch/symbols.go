package batch

import (
	"math"
	"slices"
	"unicode/utf8"

	"github.com/cespare/xxhash/v2"
)

// Labels as references: a label is two indexes into b.Symbols, in b.Refs. A 2.0 request contains
// the references; for a 1.0 request Intern creates them. Only valid labels stay references, sorted
// and with different names. Labels of other series become texts. Each symbol is checked only once,
// however often references use it.

// Bits of a symbol's info: two flags, and above them its length.
const (
	usableName  = 1 << 0
	UsableValue = 1 << 1
	LengthShift = 2
	longSymbol  = 1 << 28 // length from which a symbol is never usable
)

// Memory of references, in bytes.
const (
	RefBytes  = 4
	InfoBytes = 8 // per symbol: its info, and its number in a message
)

// Bounds of the length of Batch.recent.
const (
	LeastRecent = 1 << 8
	mostRecent  = 1 << 16
)

// BeginSymbols prepares for Intern. It adds the first symbol, the empty one, if there is none.
// texts is about how many texts will follow.
func (b *Batch) BeginSymbols(texts int) error {
	size := LeastRecent
	for size < min(texts, mostRecent) {
		size *= 2
	}
	if err := b.Elements.Charge(SymbolBytes + InfoBytes + size*RefBytes); err != nil {
		return err
	}
	if len(b.Symbols) == 0 {
		b.addSymbol("")
	}
	b.recent = slices.Grow(b.recent[:0], size)[:size]
	clear(b.recent)
	return nil
}

// Intern returns a reference of a text. It adds the text to the symbols if it does not find it
// there. It finds only the latest of the texts whose hashes have the same place: so a text may be
// there twice, and no choice of texts makes the search longer.
func (b *Batch) Intern(text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	if len(b.recent) == 0 {
		if err := b.BeginSymbols(len(b.Labels)); err != nil {
			return 0, err
		}
	}
	recent := &b.recent[xxhash.Sum64String(text)&uint64(len(b.recent)-1)]
	if ref := *recent; ref != 0 && b.Symbols[ref] == text {
		return ref, nil
	}
	if err := b.Elements.Charge(SymbolBytes + InfoBytes); err != nil {
		return 0, err
	}
	*recent = uint32(len(b.Symbols))
	b.addSymbol(text)
	return *recent, nil
}

func (b *Batch) addSymbol(text string) {
	b.Symbols = append(b.Symbols, text)
	b.Info = append(b.Info, b.Bounds.Info(text))
	b.SymbolBytes += len(text)
}

// LabelBounds are the limits of labels.
type LabelBounds struct{ Name, Value, Labels int }

// Info checks a symbol, and returns its info.
func (l LabelBounds) Info(text string) uint32 {
	if !utf8.ValidString(text) {
		return 0
	}
	return l.LengthInfo(text)
}

// LengthInfo is Info for a text that is known to be UTF-8.
func (l LabelBounds) LengthInfo(text string) uint32 {
	n := len(text)
	if n == 0 || n >= longSymbol {
		return 0
	}
	known := uint32(n) << LengthShift
	if n <= l.Name {
		known |= usableName
	}
	if n <= l.Value {
		known |= UsableValue
	}
	return known
}

// AddPair appends references for a label's name and value.
func (b *Batch) AddPair(name, value string) error {
	if err := b.GrowRefs(2); err != nil {
		return err
	}
	n, err := b.Intern(name)
	if err != nil {
		return err
	}
	v, err := b.Intern(value)
	if err == nil {
		b.Refs = append(b.Refs, n, v)
	}
	return err
}

// usable reports whether a series' references are valid labels: known symbols, in pairs, sorted,
// with different names, with a metric's name, and within the limits. bytes is the length of their
// texts, which must fit in 31 bits.
func (b *Batch) usable(refs []uint32) (bytes int, ok bool) {
	if len(refs) == 0 || len(refs)%2 != 0 || len(refs)/2 > b.Bounds.Labels {
		return 0, false
	}
	info, before := b.Info, Slice(b.Refs, b.Ordered)
	same := len(before) == len(refs)
	names, values := uint32(usableName), uint32(UsableValue)
	for i := 0; i+1 < len(refs); i += 2 {
		n, v := refs[i], refs[i+1]
		if uint(n) >= uint(len(info)) || uint(v) >= uint(len(info)) {
			return 0, false
		}
		same = same && before[i] == n
		name, value := info[n], info[v]
		names, values = names&name, values&value
		bytes += int(name>>LengthShift) + int(value>>LengthShift)
	}
	return bytes, names != 0 && values != 0 && bytes <= math.MaxInt32 && (same || b.sortedNames(refs))
}

// sortedNames reports whether the names are in ascending order, and include the metric's name.
func (b *Batch) sortedNames(refs []uint32) bool {
	named := false
	for i := 0; i < len(refs); i += 2 {
		name := b.Symbols[refs[i]]
		if i > 0 && b.Symbols[refs[i-2]] >= name {
			return false
		}
		named = named || name == NameLabel
	}
	return named
}

// EndRefs ends the references of a series. It reports whether they are usable.
func (b *Batch) EndRefs(s *Series) bool {
	s.Refs = Until(s.Refs, b.Refs)
	bytes, ok := b.usable(b.Refs[s.Refs.From:])
	if !ok {
		return false
	}
	s.LabelBytes = int32(bytes)
	b.Ordered, b.OrderedBytes = s.Refs, s.LabelBytes
	return true
}

// GrowRefs provides memory for n more references. It charges only memory that it has not charged
// before: removed references leave theirs to the next ones.
func (b *Batch) GrowRefs(n int) error {
	if len(b.Refs)+n <= b.chargedRefs {
		return nil
	}
	return b.chargeRefs(n)
}

func (b *Batch) chargeRefs(n int) error {
	if err := b.Elements.Charge((len(b.Refs) + n - b.chargedRefs) * RefBytes); err != nil {
		return err
	}
	b.Refs = slices.Grow(b.Refs, n)
	b.chargedRefs = len(b.Refs) + n
	return nil
}

// ResolveLabels replaces the references of the last series by texts. All referenced symbols must
// exist.
func (b *Batch) ResolveLabels(s *Series) error {
	refs := Slice(b.Refs, s.Refs)
	if err := b.Elements.Charge(len(refs) / 2 * LabelBytes); err != nil {
		return err
	}
	s.Labels = Start(b.Labels)
	b.Labels = b.appendTexts(b.Labels, refs)
	s.Labels = Until(s.Labels, b.Labels)
	b.Refs = b.Refs[:s.Refs.From]
	s.Refs = Extent{}
	return nil
}

func (b *Batch) appendTexts(dst []Label, refs []uint32) []Label {
	for i := 0; i+1 < len(refs); i += 2 {
		dst = append(dst, Label{b.Symbols[refs[i]], b.Symbols[refs[i+1]]})
	}
	return dst
}

// LabelsOf returns a series' labels as texts. It allocates them if the series has references only.
func (b *Batch) LabelsOf(s *Series) []Label {
	if s.Labels.Len() == 0 && s.Refs.Len() > 0 {
		return b.appendTexts(make([]Label, 0, s.Refs.Len()/2), Slice(b.Refs, s.Refs))
	}
	return Slice(b.Labels, s.Labels)
}

// appendRefFields is appendLabelFields for references.
func (b *Batch) appendRefFields(dst []byte, refs []uint32) []byte {
	for i := 0; i+1 < len(refs); i += 2 {
		dst = appendLabelField(dst, b.Symbols[refs[i]], b.Symbols[refs[i+1]])
	}
	return dst
}
