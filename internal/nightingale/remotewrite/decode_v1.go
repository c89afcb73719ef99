package remotewrite

import (
	"errors"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

var errForeign = errors.New("no field of prometheus.WriteRequest in it: is it a remote write 2.0 body?")

// usualLabel is the size of a usual label in a body. Most labels are the same as in other series.
const usualLabel = 16

// DecodeV1 decodes a prometheus.WriteRequest. It ignores unknown fields, as protobuf requires, but
// a body with only unknown fields is an error.
func DecodeV1(into *batch.Batch, body []byte, l Limits) error {
	b := decoder{into}
	b.Body, b.Elements.Limit = body, int(l.MemoryBytes)
	known := len(body) == 0 // an empty request is valid
	if b.References {
		b.Bounds = boundsOf(&l)
		if err := b.BeginSymbols(len(body) / usualLabel); err != nil {
			return err
		}
	}
	var fc easyproto.FieldContext
	for rest := body; len(rest) > 0; {
		var number uint32
		var data []byte
		var ok bool
		var err error
		if number, data, rest, ok, err = bytesField(&fc, rest); err != nil {
			return malformed("WriteRequest", err)
		}
		switch number {
		case 1:
			if !ok {
				return malformed("WriteRequest.timeseries", errWireType)
			}
			if len(b.Series) >= l.Series {
				return refusal.TooLarge("series", "the request has more than %d series", l.Series)
			}
			if err := b.Elements.Charge(batch.SeriesBytes); err != nil {
				return err
			}
			if err := b.decodeSeriesV1(data); err != nil {
				return malformed("TimeSeries", err)
			}
			to := len(body) - len(rest)
			raw := &b.Series[len(b.Series)-1].Raw
			raw.From, raw.To = int32(to-len(data)), int32(to)
		case 3:
			if !ok {
				return malformed("WriteRequest.metadata", errWireType)
			}
			if len(b.Metadata) >= l.Series {
				return refusal.TooLarge("series", "the request has more than %d metadata entries", l.Series)
			}
			if err := b.Elements.Charge(batch.MetadataBytes); err != nil {
				return err
			}
			if err := b.decodeMetadataV1(data); err != nil {
				return malformed("MetricMetadata", err)
			}
		default:
			continue
		}
		known = true
	}
	if !known {
		return malformed("body", errForeign)
	}
	return nil
}

func (b decoder) decodeSeriesV1(src []byte) (err error) {
	s := batch.Series{
		Labels: batch.Start(b.Labels), Refs: batch.Start(b.Refs), Samples: batch.Start(b.Samples), Exemplars: batch.Start(b.Exemplars), Histograms: batch.Start(b.Histograms),
	}
	whole, size, known := src, len(src), false
	if b.References {
		src, known, err = b.plainRefsV1(src)
	} else {
		b.Labels, src, err = b.plainLabelsV1(b.Labels, src)
	}
	if err != nil {
		return err
	}
	s.Raw.Labels, s.Raw.PlainLabels = int32(size-len(src)), true
	var fc easyproto.FieldContext
	for len(src) > 0 {
		var number uint32
		var data []byte
		var ok bool
		if number, data, src, ok, err = bytesField(&fc, src); err != nil {
			return err
		}
		if number < 1 || number > 4 {
			continue
		}
		if !ok {
			return errWireType
		}
		switch number {
		case 1:
			if b.References {
				err = b.appendPairV1(data)
			} else {
				b.Labels, err = b.appendLabelV1(b.Labels, data)
			}
			s.Raw.Labels, s.Raw.PlainLabels, known = int32(size-len(src)), false, false
		case 2:
			err = b.decodeSample(data, false)
		case 3:
			err = b.decodeExemplarV1(data)
		case 4:
			err = b.decodeHistogram(data, false)
		}
		if err != nil {
			return err
		}
	}
	s.Labels, s.Samples = batch.Until(s.Labels, b.Labels), batch.Until(s.Samples, b.Samples)
	s.Exemplars, s.Histograms = batch.Until(s.Exemplars, b.Exemplars), batch.Until(s.Histograms, b.Histograms)
	if b.References {
		if err := b.endRefsV1(&s, whole, known); err != nil {
			return err
		}
	}
	b.Series = append(b.Series, s)
	return nil
}

// plainLabelsV1 decodes labels at the beginning of src as long as they have the usual form, and
// returns the rest. It decodes most of a request. The usual form is what an encoder writes for a
// name and a value with together less than 124 bytes.
func (b decoder) plainLabelsV1(dst []batch.Label, src []byte) ([]batch.Label, []byte, error) {
	for len(src) >= 6 && src[0] == 1<<3|2 && src[1] < 0x80 {
		field, end := src, 2+int(src[1])
		if len(src) < end || end < 6 || field[2] != 1<<3|2 || field[3] >= 0x80 {
			break
		}
		value := 4 + int(field[3]) // position of the value's tag
		if value+2 > end || field[value] != 2<<3|2 || value+2+int(field[value+1]) != end {
			break
		}
		if err := b.Elements.Charge(batch.LabelBytes); err != nil {
			return dst, src, err
		}
		dst = append(dst, batch.Label{Name: text(field[4:value]), Value: text(field[value+2 : end])})
		src = src[end:]
	}
	return dst, src, nil
}

// appendLabelV1 decodes a Label.
func (b decoder) appendLabelV1(dst []batch.Label, src []byte) ([]batch.Label, error) {
	if err := b.Elements.Charge(batch.LabelBytes); err != nil {
		return dst, err
	}
	l, err := decodeLabelV1(src)
	return append(dst, l), err
}

// appendPairV1 decodes a Label into references.
func (b decoder) appendPairV1(src []byte) error {
	l, err := decodeLabelV1(src)
	if err == nil {
		err = b.AddPair(l.Name, l.Value)
	}
	return err
}

func decodeLabelV1(src []byte) (l batch.Label, err error) {
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return l, err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			l.Name, ok = fc.String()
		case 2:
			l.Value, ok = fc.String()
		}
		if !ok {
			return l, errWireType
		}
	}
	return l, nil
}

func (b decoder) decodeExemplarV1(src []byte) (err error) {
	if err := b.Elements.Charge(batch.ExemplarBytes); err != nil {
		return err
	}
	e := batch.Exemplar{Labels: batch.Start(b.ExemplarLabels)}
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			var data []byte
			if data, ok = fc.MessageData(); ok {
				b.ExemplarLabels, err = b.appendLabelV1(b.ExemplarLabels, data)
			}
		case 2:
			e.Value, ok = fc.Double()
		case 3:
			e.Timestamp, ok = fc.Int64()
		}
		if !ok {
			return errWireType
		}
		if err != nil {
			return err
		}
	}
	e.Labels = batch.Until(e.Labels, b.ExemplarLabels)
	b.Exemplars = append(b.Exemplars, e)
	return nil
}

func (b decoder) decodeMetadataV1(src []byte) (err error) {
	var m batch.Metadata
	var number int32
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			number, ok = enum(&fc)
		case 2:
			m.Family, ok = fc.String()
		case 4:
			m.Help, ok = fc.String()
		case 5:
			m.Unit, ok = fc.String()
		}
		if !ok {
			return errWireType
		}
	}
	m.Type = batch.TypeOf(number)
	b.Metadata = append(b.Metadata, m)
	return nil
}
