package remotewrite

import "github.com/aviaryhq/aviary/internal/nightingale/batch"

// decodeHistogram decodes a Histogram. It is the same in both versions, except for the start
// timestamp of version 2.
func (b decoder) decodeHistogram(src []byte, starts bool) error {
	if err := b.Elements.Charge(batch.HistogramBytes); err != nil {
		return err
	}
	k := &b.Buckets
	h := batch.Histogram{CustomValues: batch.Start(k.CustomValues)}
	for side := range h.Spans {
		h.Spans[side], h.Deltas[side] = batch.Start(k.Spans[side]), batch.Start(k.Deltas[side])
		h.Counts[side] = batch.Start(k.Counts[side])
	}
	f := readFields(src)
	for f.next() {
		if err := b.chargeBuckets(&f); err != nil {
			return err
		}
		side := batch.Positive
		if f.FieldNum <= 10 {
			side = batch.Negative
		}
		switch f.FieldNum {
		case 1:
			h.Count, f.ok = f.Uint64()
			h.CountKind = batch.IntCount
		case 2:
			h.CountFloat, f.ok = f.Double()
			h.CountKind = batch.FloatCount
		case 3:
			h.Sum, f.ok = f.Double()
		case 4:
			h.Schema, f.ok = f.sint32()
		case 5:
			h.ZeroThreshold, f.ok = f.Double()
		case 6:
			h.ZeroCount, f.ok = f.Uint64()
			h.ZeroKind = batch.IntCount
		case 7:
			h.ZeroFloat, f.ok = f.Double()
			h.ZeroKind = batch.FloatCount
		case 8, 11:
			span, err := decodeSpan(&f)
			if err != nil {
				return err
			}
			k.Spans[side] = append(k.Spans[side], span)
		case 9, 12:
			k.Deltas[side], f.ok = f.UnpackSint64s(k.Deltas[side])
		case 10, 13:
			k.Counts[side], f.ok = f.UnpackDoubles(k.Counts[side])
		case 14:
			h.ResetHint, f.ok = f.enum()
		case 15:
			h.Timestamp, f.ok = f.Int64()
		case 16:
			k.CustomValues, f.ok = f.UnpackDoubles(k.CustomValues)
		case 17:
			if starts {
				h.Start, f.ok = f.Int64()
			}
		}
	}
	for side := range h.Spans {
		h.Spans[side], h.Deltas[side] = batch.Until(h.Spans[side], k.Spans[side]), batch.Until(h.Deltas[side], k.Deltas[side])
		h.Counts[side] = batch.Until(h.Counts[side], k.Counts[side])
	}
	h.CustomValues = batch.Until(h.CustomValues, k.CustomValues)
	b.Histograms = append(b.Histograms, h)
	return f.err
}

// chargeBuckets charges the spans or buckets that a field of a histogram adds.
func (b decoder) chargeBuckets(f *fieldReader) error {
	data, packed := f.MessageData()
	switch f.FieldNum {
	case 8, 11:
		return b.Elements.Charge(batch.SpanBytes)
	case 9, 12:
		n := 0
		for _, c := range data {
			if c < 0x80 { // the last byte of a number
				n++
			}
		}
		if !packed {
			n = 1
		}
		return b.Elements.Charge(n * batch.BucketBytes)
	case 10, 13, 16:
		return b.Elements.Charge(max(len(data), batch.BucketBytes))
	default:
		return nil
	}
}

func decodeSpan(field *fieldReader) (s batch.BucketSpan, err error) {
	src, ok := field.MessageData()
	if !ok {
		return s, errWireType
	}
	f := readFields(src)
	for f.next() {
		switch f.FieldNum {
		case 1:
			s.Offset, f.ok = f.sint32()
		case 2:
			var v uint64
			v, f.ok = f.Uint64()
			s.Length = uint32(v)
		}
	}
	return s, f.err
}
