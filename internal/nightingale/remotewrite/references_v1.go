package remotewrite

import (
	"encoding/binary"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// plainRefsV1 is plainLabelsV1 with references. Most labels are the same as in the previous series,
// in the same order. Then comparing their bytes is enough, and if only the value differs, the
// name's reference is known. known says that the labels are proven to be usable.
func (b decoder) plainRefsV1(src []byte) (rest []byte, known bool, err error) {
	before, raw := batch.Slice(b.Refs, b.Ordered), b.OrderedRaw
	if known = len(raw) > 0; !known {
		before = nil
	}
	for len(src) >= 6 && src[0] == 1<<3|2 && src[1] < 0x80 {
		field, end := src, 2+int(src[1])
		if len(src) < end || end < 6 || field[2] != 1<<3|2 || field[3] >= 0x80 {
			break
		}
		if err = b.Elements.Charge(2 * batch.RefBytes); err != nil {
			return src, false, err
		}
		var n, v uint32
		sameName := false
		if len(before) >= 2 {
			n, v, before = before[0], before[1], before[2:]
			size := 2 + int(raw[1])
			if size == end && sameEnd(raw[:size], field[:end]) && string(raw[2:size]) == string(field[2:end]) {
				b.Refs = append(b.Refs, n, v)
				src, raw = src[end:], raw[size:]
				continue
			}
			sameName = raw[3] == field[3] && 4+int(field[3]) <= end && sameBegin(raw[4:], field[4:], int(field[3]))
			raw = raw[size:]
		} else {
			known = false
		}
		value := 4 + int(field[3]) // position of the value's tag
		if value+2 > end || field[value] != 2<<3|2 || value+2+int(field[value+1]) != end {
			break
		}
		if !sameName {
			known = false
			if n, err = b.Intern(text(field[4:value])); err != nil {
				return src, false, err
			}
		}
		if v, err = b.internValue(field[:end], value+2); err != nil {
			return src, false, err
		}
		known = known && b.Info[v]&batch.UsableValue != 0
		b.Refs = append(b.Refs, n, v)
		src = src[end:]
	}
	return src, known && len(before) == 0, nil
}

// sameEnd reports whether two labels of the same length may be equal. It compares their last bytes,
// where most different labels differ.
func sameEnd(a, b []byte) bool {
	n := len(a)
	return n < 8 || n != len(b) || binary.LittleEndian.Uint64(a[n-8:]) == binary.LittleEndian.Uint64(b[n-8:])
}

// sameBegin reports whether the first n bytes of a and b are equal. Both must have n bytes. It is
// fast for short names, which are the most frequent.
func sameBegin(a, b []byte, n int) bool {
	if n <= 8 && len(a) >= 8 && len(b) >= 8 {
		return (binary.LittleEndian.Uint64(a)^binary.LittleEndian.Uint64(b))<<(64-8*n) == 0
	}
	return string(a[:n]) == string(b[:n])
}

// internValue returns the reference of the value at the end of a label.
func (b decoder) internValue(label []byte, from int) (uint32, error) {
	value := text(label[from:])
	if len(label) < 8 {
		return b.Intern(value)
	}
	const mix = 0x9e3779b97f4a7c15 // spreads values that differ in few bits
	recent := &b.Table.Recent[binary.LittleEndian.Uint64(label[len(label)-8:])*mix>>(64-batch.RecentBits)]
	if ref := *recent; ref != 0 && b.Symbols[ref] == value {
		return ref, nil
	}
	ref, err := b.Intern(value)
	*recent = ref
	return ref, err
}

// endRefsV1 ends the labels of a series of a 1.0 request. src begins with these labels. known says
// that they are usable.
func (b decoder) endRefsV1(s *batch.Series, src []byte, known bool) error {
	if known {
		s.Refs = batch.Until(s.Refs, b.Refs)
		s.LabelBytes, b.Ordered = s.Raw.Labels, s.Refs
	} else if !b.EndRefs(s) {
		return b.ResolveLabels(s)
	}
	if b.OrderedRaw = nil; s.Raw.PlainLabels {
		b.OrderedRaw = src[:s.Raw.Labels]
	}
	return nil
}
