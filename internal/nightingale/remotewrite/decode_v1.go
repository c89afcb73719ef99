package remotewrite

import (
	"errors"
	"math"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

var errForeign = errors.New("it has no field of prometheus.WriteRequest (is it a remote write 2.0 body?)")

// typicalLabelBytes is the size of a typical label in a body.
const typicalLabelBytes = 16

// DecodeV1 decodes a prometheus.WriteRequest. It ignores unknown fields, as protobuf requires, but
// a body with only unknown fields is an error.
func DecodeV1(into *batch.Batch, body []byte, l Limits) error {
	b := newDecoder(into, &l, math.MaxInt)
	b.Body = body
	if b.References {
		if err := b.BeginSymbols(len(body) / typicalLabelBytes); err != nil {
			return err
		}
	}
	recognized := len(body) == 0 // an empty request is valid
	var fc easyproto.FieldContext
	for rest := body; len(rest) > 0; {
		var number uint32
		var data []byte
		var err error
		if number, data, rest, err = bytesField(&fc, rest); err != nil {
			return malformed("WriteRequest", err)
		}
		if number != 1 && number != 3 {
			continue
		}
		recognized = true
		switch {
		case data == nil:
			return malformed("WriteRequest", errWireType)
		case number == 1:
			if len(b.Series) >= l.Series {
				return refusal.TooLarge("series", "the request has more than %d series", l.Series)
			}
			if err := b.decodeSeriesV1(data, len(body)-len(rest)); err != nil {
				return malformed("TimeSeries", err)
			}
		default:
			if len(b.Metadata) >= l.Series {
				return refusal.TooLarge("series", "the request has more than %d metadata entries", l.Series)
			}
			if err := b.decodeMetadataV1(data); err != nil {
				return malformed("MetricMetadata", err)
			}
		}
	}
	if !recognized {
		return malformed("the body", errForeign)
	}
	return nil
}

// decodeSeriesV1 decodes a TimeSeries. end is its end in the body.
func (b decoder) decodeSeriesV1(src []byte, end int) (err error) {
	if err := b.Elements.Charge(batch.SeriesBytes); err != nil {
		return err
	}
	s, valid := b.beginSeries(), false
	var rest []byte
	if b.References {
		rest, valid, err = b.plainRefsV1(src)
	} else {
		b.Labels, rest, err = b.plainLabelsV1(b.Labels, src)
	}
	if err != nil {
		return err
	}
	s.Raw = batch.Span{From: int32(end - len(src)), To: int32(end), Labels: int32(len(src) - len(rest)), PlainLabels: true}
	var fc easyproto.FieldContext
	for len(rest) > 0 {
		var number uint32
		var data []byte
		if number, data, rest, err = bytesField(&fc, rest); err != nil {
			return err
		}
		if number > 4 {
			continue
		}
		if data == nil {
			return errWireType
		}
		switch number {
		case 1:
			if b.References {
				err = b.appendPairV1(data)
			} else {
				b.Labels, err = b.appendLabelV1(b.Labels, data)
			}
			s.Raw.Labels, s.Raw.PlainLabels, valid = int32(len(src)-len(rest)), false, false
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
	if b.References {
		if valid {
			s.Refs = batch.Until(s.Refs, b.Refs)
			s.LabelBytes, b.PreviousRefs = s.Raw.Labels, s.Refs // LabelBytes is an upper bound
		} else if err := b.endRefs(s, false); err != nil {
			return err
		}
		if s.Refs.Len() > 0 && s.Raw.PlainLabels {
			b.PreviousRaw = src[:s.Raw.Labels]
		}
	}
	b.endSeries(s)
	return nil
}

// plainLabelsV1 decodes the labels at the beginning of src that are plain: in the form that an
// encoder writes for a name and a value with together less than 124 bytes. It returns the rest.
func (b decoder) plainLabelsV1(dst []batch.Label, src []byte) ([]batch.Label, []byte, error) {
	for len(src) >= 6 && src[0] == 1<<3|2 && src[1] < 0x80 {
		field, end := src, 2+int(src[1])
		if len(src) < end || end < 6 || field[2] != 1<<3|2 || field[3] >= 0x80 {
			break
		}
		tag := 4 + int(field[3])
		if tag+2 > end || field[tag] != 2<<3|2 || tag+2+int(field[tag+1]) != end {
			break
		}
		if err := b.Elements.Charge(batch.LabelBytes); err != nil {
			return dst, src, err
		}
		dst = append(dst, batch.Label{Name: text(field[4:tag]), Value: text(field[tag+2 : end])})
		src = src[end:]
	}
	return dst, src, nil
}

// plainRefsV1 is plainLabelsV1 with references. Most labels are the same as in the previous series,
// in the same order. Then comparing their bytes is enough, and if only the value differs, the
// name's reference is known. valid says that the labels are proven to be valid.
func (b decoder) plainRefsV1(src []byte) (rest []byte, valid bool, err error) {
	refs, raw := batch.Slice(b.Refs, b.PreviousRefs), b.PreviousRaw
	if valid = len(raw) > 0; !valid {
		refs = nil
	}
	if err = b.GrowRefs(len(refs)); err != nil { // at once, because that is faster
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
		var name, value uint32
		sameName := false
		if len(refs) >= 2 {
			name, value, refs = refs[0], refs[1], refs[2:]
			size := 2 + int(raw[1])
			if size == end && string(raw[2:size]) == string(field[2:end]) {
				b.Refs = append(b.Refs, name, value)
				src, raw = src[end:], raw[size:]
				continue
			}
			nameEnd := 4 + int(field[3])
			sameName = raw[3] == field[3] && nameEnd <= end && string(raw[4:nameEnd]) == string(field[4:nameEnd])
			raw = raw[size:]
		} else {
			valid = false
		}
		tag := 4 + int(field[3]) // position of the value's tag
		if tag+2 > end || field[tag] != 2<<3|2 || tag+2+int(field[tag+1]) != end {
			break
		}
		if !sameName {
			valid = false
			if name, err = b.Intern(text(field[4:tag])); err != nil {
				return src, false, err
			}
		}
		if value, err = b.Intern(text(field[tag+2 : end])); err != nil {
			return src, false, err
		}
		valid = valid && b.Info[value]&batch.ValidValue != 0
		b.Refs = append(b.Refs, name, value)
		src = src[end:]
	}
	return src, valid && len(refs) == 0, nil
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
	if err := b.GrowRefs(2); err != nil {
		return err
	}
	l, err := decodeLabelV1(src)
	if err != nil {
		return err
	}
	name, nameErr := b.Intern(l.Name)
	value, valueErr := b.Intern(l.Value)
	b.Refs = append(b.Refs, name, value)
	return errors.Join(nameErr, valueErr)
}

func decodeLabelV1(src []byte) (l batch.Label, err error) {
	f := readFields(src)
	for f.next() {
		switch f.FieldNum {
		case 1:
			l.Name, f.ok = f.String()
		case 2:
			l.Value, f.ok = f.String()
		}
	}
	return l, f.err
}

func (b decoder) decodeExemplarV1(src []byte) error {
	if err := b.Elements.Charge(batch.ExemplarBytes); err != nil {
		return err
	}
	e := batch.Exemplar{Labels: batch.Start(b.ExemplarLabels)}
	f := readFields(src)
	for f.next() {
		switch f.FieldNum {
		case 1:
			var data []byte
			if data, f.ok = f.MessageData(); f.ok {
				b.ExemplarLabels, f.err = b.appendLabelV1(b.ExemplarLabels, data)
			}
		case 2:
			e.Value, f.ok = f.Double()
		case 3:
			e.Timestamp, f.ok = f.Int64()
		}
	}
	e.Labels = batch.Until(e.Labels, b.ExemplarLabels)
	b.Exemplars = append(b.Exemplars, e)
	return f.err
}

func (b decoder) decodeMetadataV1(src []byte) error {
	if err := b.Elements.Charge(batch.MetadataBytes); err != nil {
		return err
	}
	var m batch.Metadata
	f := readFields(src)
	for f.next() {
		switch f.FieldNum {
		case 1:
			var number int32
			number, f.ok = f.enum()
			m.Type = batch.TypeOf(number)
		case 2:
			m.Family, f.ok = f.String()
		case 4:
			m.Help, f.ok = f.String()
		case 5:
			m.Unit, f.ok = f.String()
		}
	}
	b.Metadata = append(b.Metadata, m)
	return f.err
}
