package remotewrite

import (
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
	if err = b.GrowRefs(len(before)); err != nil { // at once, because that is faster
		return src, false, err
	}
	for len(src) >= 6 && src[0] == 1<<3|2 && src[1] < 0x80 {
		field, end := src, 2+int(src[1])
		if len(src) < end || end < 6 || field[2] != 1<<3|2 || field[3] >= 0x80 {
			break
		}
		if err = b.GrowRefs(2); err != nil {
			return src, false, err
		}
		var n, v uint32
		sameName := false
		if len(before) >= 2 {
			n, v, before = before[0], before[1], before[2:]
			size := 2 + int(raw[1])
			if size == end && string(raw[2:size]) == string(field[2:end]) {
				b.Refs = append(b.Refs, n, v)
				src, raw = src[end:], raw[size:]
				continue
			}
			name := 4 + int(field[3])
			sameName = raw[3] == field[3] && name <= end && string(raw[4:name]) == string(field[4:name])
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
		if v, err = b.Intern(text(field[value+2 : end])); err != nil {
			return src, false, err
		}
		known = known && b.Info[v]&batch.UsableValue != 0
		b.Refs = append(b.Refs, n, v)
		src = src[end:]
	}
	return src, known && len(before) == 0, nil
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
