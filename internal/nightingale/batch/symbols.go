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
	validName   = 1 << 0
	ValidValue  = 1 << 1
	LengthShift = 2
	longSymbol  = 1 << 28 // length from which a symbol is never valid
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
		b.Symbols, b.Info = append(b.Symbols, ""), append(b.Info, 0)
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
	info := uint32(0)
	if utf8.ValidString(text) {
		info = b.Bounds.Info(text)
	}
	b.Symbols, b.Info = append(b.Symbols, text), append(b.Info, info)
	b.SymbolBytes += len(text)
	return *recent, nil
}

// LabelBounds are the limits of labels.
type LabelBounds struct{ Name, Value, Labels int }

// Info returns the info of a symbol that is UTF-8. That of others is 0.
func (l LabelBounds) Info(text string) uint32 {
	n := len(text)
	if n == 0 || n >= longSymbol {
		return 0
	}
	info := uint32(n) << LengthShift
	if n <= l.Name {
		info |= validName
	}
	if n <= l.Value {
		info |= ValidValue
	}
	return info
}

// validLabels reports whether a series' references are valid labels: known symbols, in pairs,
// sorted, with different names, with a metric's name, and within the limits. It sets LabelBytes to
// the length of their texts, which must fit in 31 bits.
func (b *Batch) validLabels(s *Series) bool {
	refs, info, previous := Slice(b.Refs, s.Refs), b.Info, Slice(b.Refs, b.PreviousRefs)
	if len(refs) == 0 || len(refs)%2 != 0 || len(refs)/2 > b.Bounds.Labels {
		return false
	}
	bytes, sameNames := 0, len(previous) == len(refs)
	names, values := uint32(validName), uint32(ValidValue)
	for i := 0; i+1 < len(refs); i += 2 {
		n, v := refs[i], refs[i+1]
		if uint(n) >= uint(len(info)) || uint(v) >= uint(len(info)) {
			return false
		}
		sameNames = sameNames && previous[i] == n
		name, value := info[n], info[v]
		names, values = names&name, values&value
		bytes += int(name>>LengthShift) + int(value>>LengthShift)
	}
	s.LabelBytes = int32(bytes)
	return names != 0 && values != 0 && bytes <= math.MaxInt32 && (sameNames || b.sortedNames(refs))
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

// EndRefs ends the references of a series. It reports whether they are valid labels. valid says
// that they are known to be: then LabelBytes is set.
func (b *Batch) EndRefs(s *Series, valid bool) bool {
	s.Refs = Until(s.Refs, b.Refs)
	if !valid && !b.validLabels(s) {
		return false
	}
	b.PreviousRefs, b.PreviousBytes, b.PreviousRaw = s.Refs, s.LabelBytes, nil
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

// LabelsOf returns a series' labels as texts. It allocates them if the series has references only.
func (b *Batch) LabelsOf(s *Series) []Label {
	refs := Slice(b.Refs, s.Refs)
	if len(refs) == 0 {
		return Slice(b.Labels, s.Labels)
	}
	labels := make([]Label, 0, len(refs)/2)
	for ; len(refs) >= 2; refs = refs[2:] {
		labels = append(labels, Label{b.Symbols[refs[0]], b.Symbols[refs[1]]})
	}
	return labels
}

// appendRefFields is appendLabelFields for references.
func (b *Batch) appendRefFields(dst []byte, refs []uint32) []byte {
	for i := 0; i+1 < len(refs); i += 2 {
		dst = appendLabelField(dst, b.Symbols[refs[i]], b.Symbols[refs[i+1]])
	}
	return dst
}
