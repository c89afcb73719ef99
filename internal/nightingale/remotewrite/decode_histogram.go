package remotewrite

import (
	"fmt"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

var errBuckets = fmt.Errorf("histogram: %w", errWireType)

// decodeHistogram decodes a Histogram. It is the same in both versions, except for the start
// timestamp of version 2.
func (b decoder) decodeHistogram(src []byte, starts bool) (err error) {
	if err := b.Elements.Charge(batch.HistogramBytes); err != nil {
		return err
	}
	k := &b.Buckets
	h := batch.Histogram{
		PositiveSpans: batch.Start(k.PositiveSpans), NegativeSpans: batch.Start(k.NegativeSpans),
		PositiveDeltas: batch.Start(k.PositiveDeltas), NegativeDeltas: batch.Start(k.NegativeDeltas),
		PositiveCounts: batch.Start(k.PositiveCounts), NegativeCounts: batch.Start(k.NegativeCounts),
		CustomValues: batch.Start(k.CustomValues),
	}
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		if err := b.chargeBuckets(&fc); err != nil {
			return err
		}
		switch fc.FieldNum {
		case 1:
			h.Count, ok = fc.Uint64()
			h.CountKind = batch.IntCount
		case 2:
			h.CountFloat, ok = fc.Double()
			h.CountKind = batch.FloatCount
		case 3:
			h.Sum, ok = fc.Double()
		case 4:
			h.Schema, ok = sint32(&fc)
		case 5:
			h.ZeroThreshold, ok = fc.Double()
		case 6:
			h.ZeroCount, ok = fc.Uint64()
			h.ZeroKind = batch.IntCount
		case 7:
			h.ZeroFloat, ok = fc.Double()
			h.ZeroKind = batch.FloatCount
		case 8:
			k.NegativeSpans, ok, err = appendSpan(k.NegativeSpans, &fc)
		case 9:
			k.NegativeDeltas, ok = fc.UnpackSint64s(k.NegativeDeltas)
		case 10:
			k.NegativeCounts, ok = fc.UnpackDoubles(k.NegativeCounts)
		case 11:
			k.PositiveSpans, ok, err = appendSpan(k.PositiveSpans, &fc)
		case 12:
			k.PositiveDeltas, ok = fc.UnpackSint64s(k.PositiveDeltas)
		case 13:
			k.PositiveCounts, ok = fc.UnpackDoubles(k.PositiveCounts)
		case 14:
			h.ResetHint, ok = enum(&fc)
		case 15:
			h.Timestamp, ok = fc.Int64()
		case 16:
			k.CustomValues, ok = fc.UnpackDoubles(k.CustomValues)
		case 17:
			if starts {
				h.Start, ok = fc.Int64()
			}
		}
		if !ok {
			return errBuckets
		}
		if err != nil {
			return err
		}
	}
	h.PositiveSpans, h.NegativeSpans = batch.Until(h.PositiveSpans, k.PositiveSpans), batch.Until(h.NegativeSpans, k.NegativeSpans)
	h.PositiveDeltas, h.NegativeDeltas = batch.Until(h.PositiveDeltas, k.PositiveDeltas), batch.Until(h.NegativeDeltas, k.NegativeDeltas)
	h.PositiveCounts, h.NegativeCounts = batch.Until(h.PositiveCounts, k.PositiveCounts), batch.Until(h.NegativeCounts, k.NegativeCounts)
	h.CustomValues = batch.Until(h.CustomValues, k.CustomValues)
	b.Histograms = append(b.Histograms, h)
	return nil
}

// chargeBuckets charges the spans or buckets that a field of a histogram adds.
func (b decoder) chargeBuckets(fc *easyproto.FieldContext) error {
	switch fc.FieldNum {
	case 8, 11:
		return b.Elements.Charge(batch.SpanBytes)
	case 9, 12:
		data, packed := fc.MessageData()
		if !packed {
			return b.Elements.Charge(batch.BucketBytes)
		}
		n := 0
		for _, c := range data {
			if c < 0x80 { // the last byte of a number
				n++
			}
		}
		return b.Elements.Charge(n * batch.BucketBytes)
	case 10, 13, 16:
		data, _ := fc.MessageData()
		return b.Elements.Charge(max(len(data), batch.BucketBytes))
	default:
		return nil
	}
}

func appendSpan(dst []batch.BucketSpan, field *easyproto.FieldContext) (_ []batch.BucketSpan, ok bool, err error) {
	src, ok := field.MessageData()
	if !ok {
		return dst, false, nil
	}
	var s batch.BucketSpan
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return dst, true, err
		}
		switch fc.FieldNum {
		case 1:
			s.Offset, ok = sint32(&fc)
		case 2:
			var v uint64
			v, ok = fc.Uint64()
			s.Length = uint32(v)
		}
		if !ok {
			return dst, false, nil
		}
	}
	return append(dst, s), true, nil
}
