package remotewrite

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/truncate"
)

var (
	errForeignV2 = errors.New("it has no field of io.prometheus.write.v2.Request (is it a remote write 1.0 body?)")
	errReference = errors.New("a reference is not an unsigned integer of 32 bits")
)

// DecodeV2 decodes an io.prometheus.write.v2.Request. An error in one series, such as a reference
// beyond the symbols, is stored in that series, and the others are written. Malformed protobuf is
// an error of the whole request.
//
// A few bytes of references can refer to large symbols many times. The limit of a decoded body also
// bounds the expanded size, which b.Expanded counts.
func DecodeV2(into *batch.Batch, body []byte, l Limits) error {
	b := newDecoder(into, &l, int(l.DecodedBytes))
	series, first, symbols, err := b.decodeSymbolsV2(body, l)
	if err != nil || series == 0 {
		return err
	}
	if len(b.Symbols) == 0 || b.Symbols[0] != "" {
		return refusal.Invalid("first_symbol", "the first of the symbols must be the empty string")
	}
	if b.References {
		ascii := symbols == len(b.Symbols) && isASCII(body[:first])
		if err := b.checkSymbols(ascii); err != nil {
			return err
		}
	}
	if err := b.Elements.Charge(series * (batch.SeriesBytes + batch.MetadataBytes)); err != nil {
		return err
	}
	if cap(b.SeriesMetadata) < series { // series point into this slice, so it must not be reallocated
		b.SeriesMetadata = make([]batch.Metadata, 0, series)
	}
	var fc easyproto.FieldContext
	for rest := body[first:]; len(rest) > 0; {
		var number uint32
		var data []byte
		if number, data, rest, err = bytesField(&fc, rest); err == nil && number == 5 {
			err = b.decodeSeriesV2(data)
		}
		if err != nil {
			return malformed("TimeSeries", err)
		}
	}
	return nil
}

// decodeSymbolsV2 reads all symbols, anywhere in the body, and counts the series. first is the
// position of the first series, and symbols is the number of symbols before it, usually all.
func (b decoder) decodeSymbolsV2(body []byte, l Limits) (series, first, symbols int, err error) {
	recognized := len(body) == 0 // an empty request is valid
	var fc easyproto.FieldContext
	for rest := body; len(rest) > 0; {
		number, data, next, err := bytesField(&fc, rest)
		if err != nil {
			return 0, 0, 0, malformed("Request", err)
		}
		at := len(body) - len(rest)
		if rest = next; number != 4 && number != 5 {
			continue
		}
		recognized = true
		switch {
		case data == nil:
			return 0, 0, 0, malformed("Request", errWireType)
		case number == 5:
			if series == 0 {
				first, symbols = at, len(b.Symbols)
			}
			if series++; series > l.Series {
				return 0, 0, 0, refusal.TooLarge("series", "the request has more than %d series", l.Series)
			}
		default:
			if err := b.Elements.Charge(batch.SymbolBytes); err != nil {
				return 0, 0, 0, err
			}
			b.Symbols = append(b.Symbols, text(data))
		}
	}
	if !recognized {
		return 0, 0, 0, malformed("the body", errForeignV2)
	}
	return series, first, symbols, b.expand(symbolSize * len(b.Symbols))
}

// symbolSize is the memory of a symbol besides its text. labelSize is how many bytes a label takes
// in a request of version 1 besides its two texts.
const (
	symbolSize = 16
	labelSize  = 6
)

// expand adds to the expanded size of the request.
func (b decoder) expand(bytes int) error {
	if b.Expanded += bytes; b.Expanded > b.maxExpanded {
		return refusal.TooLarge("expanded_bytes", "the body's references expand to more than %d bytes", b.maxExpanded)
	}
	return nil
}

// checkSymbols computes the info of all symbols. ascii says that all are ASCII.
func (b decoder) checkSymbols(ascii bool) error {
	if err := b.Elements.Charge(len(b.Symbols) * batch.InfoBytes); err != nil {
		return err
	}
	b.Info = slices.Grow(b.Info, len(b.Symbols))
	for _, symbol := range b.Symbols {
		b.SymbolBytes += len(symbol)
		info := uint32(0)
		if ascii || utf8.ValidString(symbol) {
			info = b.Bounds.Info(symbol)
		}
		b.Info = append(b.Info, info)
	}
	return nil
}

// resolve appends the labels of references of s.
func (b decoder) resolve(dst []batch.Label, refs []uint32, s *batch.Series) ([]batch.Label, error) {
	if err := b.Elements.Charge(len(refs) / 2 * batch.LabelBytes); err != nil {
		return dst, err
	}
	symbols, expanded := b.Symbols, 0
	for ; len(refs) >= 2; refs = refs[2:] {
		name, value := uint(refs[0]), uint(refs[1])
		if max(name, value) >= uint(len(symbols)) {
			s.SetError(batch.ReferenceOutOfBounds)
			name, value = 0, 0 // the empty symbol: the series is invalid
		}
		l := batch.Label{Name: symbols[name], Value: symbols[value]}
		expanded += len(l.Name) + len(l.Value) + labelSize
		dst = append(dst, l)
	}
	if len(refs) > 0 {
		symbolOf(symbols, refs[0], s)
		s.SetError(batch.OddReferences)
	}
	return dst, b.expand(expanded)
}

// symbolOf returns a symbol of s, or an empty one in place of one that does not exist.
func symbolOf(symbols []string, ref uint32, s *batch.Series) string {
	if uint64(ref) >= uint64(len(symbols)) {
		s.SetError(batch.ReferenceOutOfBounds)
		return ""
	}
	return symbols[ref]
}

// decodeSeriesV2 decodes a TimeSeries.
func (b decoder) decodeSeriesV2(src []byte) (err error) {
	s := b.beginSeries()
	var metadata batch.MetadataRefs
	valid := false  // whether the labels are known to be valid
	var start int64 // of the whole series, as in release candidate 3
	var fc easyproto.FieldContext
	for rest := src; len(rest) > 0; {
		var number uint32
		var data []byte
		if number, data, rest, err = bytesField(&fc, rest); err != nil {
			return err
		}
		if number >= 2 && number <= 5 && data == nil || number == 6 && data != nil {
			return errWireType
		}
		switch number {
		case 1:
			if valid = len(b.Refs) == int(s.Refs.From) && b.decodeSameNames(data, s); !valid {
				err = b.decodeRefs(&fc, data)
			}
		case 2:
			err = b.decodeSample(data, true)
		case 3:
			err = b.decodeHistogram(data, true)
		case 4:
			err = b.decodeExemplarV2(data, s)
		case 5:
			err = decodeMetadataRefs(&metadata, data)
		case 6:
			var ok bool
			if start, ok = fc.Int64(); !ok {
				err = errWireType
			}
		}
		if err != nil {
			return err
		}
	}
	if err := b.endRefs(s, valid); err != nil {
		return err
	}
	b.endSeries(s)
	if start != 0 {
		b.startAt(s, start)
	}
	if err := b.describe(s, metadata); err != nil {
		return err
	}
	switch {
	case s.Samples.Len() > 0 && s.Histograms.Len() > 0:
		s.SetError(batch.SamplesAndHistograms)
	case s.Samples.Len()+s.Histograms.Len() == 0 && !(b.ExemplarSeries && s.Exemplars.Len() > 0):
		s.SetError(batch.NoSamples)
	}
	return b.expand(len(src))
}

// endRefs ends the labels of a series. They stay references if the batch asks for that and they are
// valid, otherwise they become texts. It counts their expanded size in both cases.
func (b decoder) endRefs(s *batch.Series, valid bool) (err error) {
	if b.References && b.EndRefs(s, valid) {
		return b.expand(int(s.LabelBytes) + s.Refs.Len()/2*labelSize)
	}
	b.Labels, err = b.resolve(b.Labels, b.Refs[s.Refs.From:], s)
	b.Refs = b.Refs[:s.Refs.From]
	s.Refs, s.LabelBytes = batch.Extent{}, 0
	return err
}

// startAt sets the series' start for samples and histograms without their own.
func (b decoder) startAt(s *batch.Series, start int64) {
	samples, histograms := batch.Slice(b.Samples, s.Samples), batch.Slice(b.Histograms, s.Histograms)
	for i := range samples {
		if samples[i].Start == 0 {
			samples[i].Start = start
		}
	}
	for i := range histograms {
		if histograms[i].Start == 0 {
			histograms[i].Start = start
		}
	}
}

// decodeExemplarV2 decodes an exemplar of s. Its references are at the end of b.Refs only until they
// are resolved, because further references of the series may follow.
func (b decoder) decodeExemplarV2(src []byte, s *batch.Series) (err error) {
	if err := b.Elements.Charge(batch.ExemplarBytes); err != nil {
		return err
	}
	e, from := batch.Exemplar{Labels: batch.Start(b.ExemplarLabels)}, int32(len(b.Refs))
	f := readFields(src)
	for f.next() {
		switch f.FieldNum {
		case 1:
			data, _ := f.MessageData()
			f.err = b.decodeRefs(&f.FieldContext, data)
		case 2:
			e.Value, f.ok = f.Double()
		case 3:
			e.Timestamp, f.ok = f.Int64()
		}
	}
	if f.err != nil {
		return f.err
	}
	b.ExemplarLabels, err = b.resolve(b.ExemplarLabels, b.Refs[from:], s)
	b.Refs = b.Refs[:from]
	e.Labels = batch.Until(e.Labels, b.ExemplarLabels)
	b.Exemplars = append(b.Exemplars, e)
	return err
}

// decodeMetadataRefs merges a piece of a series' metadata into m.
func decodeMetadataRefs(m *batch.MetadataRefs, src []byte) error {
	f := readFields(src)
	for f.next() {
		switch f.FieldNum {
		case 1:
			m.Type, f.ok = f.enum()
		case 3:
			m.Help, f.ok = f.Uint32()
		case 4:
			m.Unit, f.ok = f.Uint32()
		}
	}
	return f.err
}

// describe resolves the metadata of a series, within the bounds of families.
func (b decoder) describe(s *batch.Series, refs batch.MetadataRefs) error {
	n := len(b.SeriesMetadata)
	switch {
	case refs == (batch.MetadataRefs{}):
		return nil
	case n > 0 && refs == b.LastMetadata: // neighbouring series usually belong to the same family
		s.Metadata = &b.SeriesMetadata[n-1]
		return nil
	}
	help, unit := symbolOf(b.Symbols, refs.Help, s), symbolOf(b.Symbols, refs.Unit, s)
	m := batch.Metadata{Type: batch.TypeOf(refs.Type)}
	m.Help, m.Unit = truncate.Text(help, batch.MaxFamilyHelp), truncate.Text(unit, batch.MaxFamilyUnit)
	switch {
	case !utf8.ValidString(truncate.Prefix(help, batch.MaxFamilyHelp)),
		!utf8.ValidString(truncate.Prefix(unit, batch.MaxFamilyUnit)):
		m = batch.Metadata{Invalid: true}
	case s.Err == batch.ReferenceOutOfBounds || m == (batch.Metadata{}):
		return nil
	default:
		if m.Help == help {
			m.HelpRef = refs.Help
		}
		if m.Unit == unit {
			m.UnitRef = refs.Unit
		}
	}
	b.SeriesMetadata, b.LastMetadata = append(b.SeriesMetadata, m), refs
	s.Metadata = &b.SeriesMetadata[n]
	return b.Elements.Charge(len(m.Help) + len(m.Unit)) // they are copies if they were cut
}

// shortVarint decodes a varint of at most 3 bytes. For a longer one it returns a number that no
// symbol has.
func shortVarint(p []byte) (v uint, n int) {
	_ = p[2]
	switch {
	case p[0] < 0x80:
		return uint(p[0]), 1
	case p[1] < 0x80:
		return uint(p[0])&0x7f | uint(p[1])<<7, 2
	case p[2] < 0x80:
		return uint(p[0])&0x7f | uint(p[1])&0x7f<<7 | uint(p[2])<<14, 3
	default:
		return math.MaxUint, 3
	}
}

// decodeRefs appends the references of one occurrence of a repeated field: packed ones in data, or
// otherwise the single one in fc. It does not check that the symbols exist.
func (b decoder) decodeRefs(fc *easyproto.FieldContext, data []byte) error {
	if data == nil {
		one, ok := fc.Uint32()
		if !ok {
			return errReference
		}
		err := b.GrowRefs(1)
		b.Refs = append(b.Refs, one)
		return err
	}
	if err := b.GrowRefs(len(data)); err != nil { // at most: each reference has at least one byte
		return err
	}
	dst := b.Refs
	for len(data) >= 3 {
		ref, n := shortVarint(data)
		if ref > math.MaxUint32 {
			break
		}
		dst = append(dst, uint32(ref))
		data = data[n:]
	}
	for len(data) > 0 {
		ref, n := binary.Uvarint(data)
		if n <= 0 || ref > math.MaxUint32 {
			return errReference
		}
		dst = append(dst, uint32(ref))
		data = data[n:]
	}
	b.Refs = dst
	return nil
}

// decodeSameNames appends a series' references if all names are the same as in the previous series,
// in the same order, and the values are valid. Otherwise it changes nothing and reports false.
func (b decoder) decodeSameNames(data []byte, s *batch.Series) bool {
	before := batch.Slice(b.Refs, b.PreviousRefs)
	const pair = 6 // bytes that two calls of shortVarint may read
	if len(before) == 0 || len(data) < len(before) || cap(data) < len(data)+pair {
		return false
	}
	if b.GrowRefs(len(before)) != nil {
		return false // decodeRefs returns the error
	}
	size, info, dst := int(b.PreviousBytes), b.Info, b.Refs
	refs := dst[len(dst) : len(dst)+len(before)]
	src, at := data[:len(data)+pair], 0
	for i := 0; i+1 < len(before) && i+1 < len(refs); i += 2 {
		if at >= len(data) {
			return false
		}
		name, n := shortVarint(src[at:])
		value, m := shortVarint(src[at+n:])
		if at += n + m; uint32(name) != before[i] || value >= uint(len(info)) {
			return false
		}
		if old := before[i+1]; uint32(value) != old {
			if info[value]&batch.ValidValue == 0 {
				return false
			}
			size += int(info[value]>>batch.LengthShift) - int(info[old]>>batch.LengthShift)
		}
		refs[i], refs[i+1] = uint32(name), uint32(value)
	}
	if at != len(data) || size > math.MaxInt32 {
		return false
	}
	b.Refs, s.LabelBytes = dst[:len(dst)+len(before)], int32(size)
	return true
}
