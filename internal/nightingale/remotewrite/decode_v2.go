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
	errForeignV2 = errors.New("no field of io.prometheus.write.v2.Request in it: is it a remote write 1.0 body?")
	errReference = errors.New("a reference is not an unsigned integer of 32 bits")
	errExpanded  = errors.New("the references expand beyond the limit")
)

// DecodeV2 decodes an io.prometheus.write.v2.Request. An error in one series, such as a reference
// beyond the symbols, is stored in that series, and the others are written. Malformed protobuf is
// an error of the whole request.
//
// A few bytes of references can refer to large symbols many times. The limit of a decoded body also
// bounds the expanded size, which b.Expanded counts.
func DecodeV2(into *batch.Batch, body []byte, l Limits) error {
	b := decoder{into}
	b.Elements.Limit = int(l.MemoryBytes)
	all, err := b.decodeSymbolsV2(body, l)
	if err != nil || all.series == 0 {
		return err
	}
	if len(b.Symbols) == 0 || b.Symbols[0] != "" {
		return refusal.Invalid("first_symbol", "the first of the symbols must be the empty string")
	}
	if b.References {
		if err := b.checkSymbols(body[:len(body)-len(all.rest)], all.head, l); err != nil {
			return err
		}
	}
	if err := b.Elements.Charge(all.series * (batch.SeriesBytes + batch.MetadataBytes)); err != nil {
		return err
	}
	if cap(b.SeriesMetadata) < all.series { // series point into this slice, so it must not be reallocated
		b.SeriesMetadata = make([]batch.Metadata, 0, all.series)
	}
	var fc easyproto.FieldContext
	for rest := all.rest; len(rest) > 0; {
		var number uint32
		var data []byte
		if number, data, rest, _, err = bytesField(&fc, rest); err != nil {
			return malformed("Request", err)
		}
		if number != 5 {
			continue
		}
		if err := b.decodeSeriesV2(data, int(l.DecodedBytes)); errors.Is(err, errExpanded) {
			return expandsTooFar(l)
		} else if err != nil {
			return malformed("TimeSeries", err)
		}
	}
	return nil
}

func expandsTooFar(l Limits) error {
	return refusal.TooLarge("expanded_bytes", "the body's references expand to more than %d bytes", int64(l.DecodedBytes))
}

// seriesV2 says where the series are in a body.
type seriesV2 struct {
	series int    // number of series
	rest   []byte // the body from the first series on
	head   int    // number of symbols before it, usually all
}

// decodeSymbolsV2 reads all symbols, anywhere in the body, and counts the series.
func (b decoder) decodeSymbolsV2(body []byte, l Limits) (all seriesV2, err error) {
	known := len(body) == 0 // an empty request is valid
	var fc easyproto.FieldContext
	for rest := body; len(rest) > 0; {
		number, data, next, ok, err := bytesField(&fc, rest)
		if err != nil {
			return all, malformed("Request", err)
		}
		field := rest
		if rest = next; number != 4 && number != 5 {
			continue
		}
		known = true
		if !ok {
			return all, malformed("Request", errWireType)
		}
		if number == 5 {
			if all.series++; all.series > l.Series {
				return all, refusal.TooLarge("series", "the request has more than %d series", l.Series)
			}
			if all.series == 1 {
				all.rest, all.head = field, len(b.Symbols)
			}
			continue
		}
		if b.Expanded += symbolSize; b.Expanded > int(l.DecodedBytes) {
			return all, expandsTooFar(l)
		}
		if err := b.Elements.Charge(batch.SymbolBytes); err != nil {
			return all, err
		}
		b.Symbols = append(b.Symbols, text(data))
	}
	if !known {
		return all, malformed("body", errForeignV2)
	}
	return all, nil
}

// symbolSize is the memory of a symbol besides its text. labelSize is how many bytes a label takes
// in a request of version 1 besides its two texts.
const (
	symbolSize = 16
	labelSize  = 6
)

// references resolves the references of a series and of its exemplars to labels.
type references struct {
	symbols  []string
	elements *batch.Elements
	beyond   bool // a reference was beyond the symbols
	odd      bool // the last label had no value
	expanded int  // bytes
	limit    int  // of expanded
}

// resolve appends the labels of references.
func (r *references) resolve(dst []batch.Label, refs []uint32) ([]batch.Label, error) {
	if err := r.elements.Charge(len(refs) / 2 * batch.LabelBytes); err != nil {
		return dst, err
	}
	for len(refs) >= 2 {
		l := batch.Label{Name: r.symbol(refs[0]), Value: r.symbol(refs[1])}
		if r.expanded += len(l.Name) + len(l.Value) + labelSize; r.expanded > r.limit {
			return dst, errExpanded
		}
		dst, refs = append(dst, l), refs[2:]
	}
	if r.odd = len(refs) > 0; r.odd {
		r.symbol(refs[0])
	}
	return dst, nil
}

// symbol returns a symbol, or an empty one in place of one that does not exist.
func (r *references) symbol(ref uint32) string {
	if uint64(ref) >= uint64(len(r.symbols)) {
		r.beyond = true
		return ""
	}
	return r.symbols[ref]
}

// err returns the error of the references that resolve has resolved.
func (r *references) err() batch.SeriesError {
	switch {
	case r.beyond:
		return batch.ReferenceOutOfBounds
	case r.odd:
		return batch.OddReferences
	default:
		return batch.NoError
	}
}

// short decodes a varint of at most 3 bytes. For a longer one it returns a number that is beyond
// any symbol.
func short(p []byte) (v uint, n int) {
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

// decodeSeriesV2 decodes a TimeSeries. limit bounds b.Expanded.
func (b decoder) decodeSeriesV2(src []byte, limit int) (err error) {
	s := batch.Series{
		Labels: batch.Start(b.Labels), Refs: batch.Start(b.Refs), Samples: batch.Start(b.Samples), Exemplars: batch.Start(b.Exemplars), Histograms: batch.Start(b.Histograms),
	}
	refs := references{symbols: b.Symbols, elements: &b.Elements, expanded: b.Expanded + len(src), limit: limit}
	var metadata batch.MetadataRefs
	known := false  // whether the labels are known to be usable
	var start int64 // of the whole series, as in release candidate 3
	var fc easyproto.FieldContext
	for len(src) > 0 {
		var number uint32
		var data []byte
		var ok bool
		if number, data, src, ok, err = bytesField(&fc, src); err != nil {
			return err
		}
		if number > 6 {
			continue
		}
		if number == 6 {
			ok = !ok
			if ok {
				start, ok = fc.Int64()
			}
		}
		if !ok && number != 1 {
			return errWireType
		}
		switch number {
		case 1:
			if known = ok && len(b.Refs) == int(s.Refs.From) && b.decodeUsualRefs(data, &s); !known {
				err = b.decodeRefs(data, ok, &fc)
			}
		case 2:
			err = b.decodeSample(data, true)
		case 3:
			err = b.decodeHistogram(data, true)
		case 4:
			err = b.decodeExemplarV2(data, &refs, &s)
		case 5:
			err = decodeMetadataRefs(&metadata, data)
		}
		if err != nil {
			return err
		}
	}
	if err := b.endRefsV2(&s, &refs, known); err != nil {
		return err
	}
	s.Labels, s.Samples = batch.Until(s.Labels, b.Labels), batch.Until(s.Samples, b.Samples)
	s.Exemplars, s.Histograms = batch.Until(s.Exemplars, b.Exemplars), batch.Until(s.Histograms, b.Histograms)
	if start != 0 {
		b.startAt(&s, start)
	}
	made := len(b.SeriesMetadata)
	s.Metadata = b.describeV2(metadata, &refs)
	if err := b.ChargeMetadata(made); err != nil {
		return err
	}
	s.SetError(refs.err())
	switch {
	case s.Samples.Len() > 0 && s.Histograms.Len() > 0:
		s.SetError(batch.SamplesAndHistograms)
	case s.Samples.Len() == 0 && s.Histograms.Len() == 0:
		s.SetError(batch.NoSamples)
	}
	if b.Expanded = refs.expanded; b.Expanded > limit {
		return errExpanded
	}
	b.Series = append(b.Series, s)
	return nil
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
func (b decoder) decodeExemplarV2(src []byte, of *references, s *batch.Series) (err error) {
	if err := b.Elements.Charge(batch.ExemplarBytes); err != nil {
		return err
	}
	refs := references{symbols: of.symbols, elements: of.elements, expanded: of.expanded, limit: of.limit}
	e, from := batch.Exemplar{Labels: batch.Start(b.ExemplarLabels)}, int32(len(b.Refs))
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			data, packed := fc.MessageData()
			if err = b.decodeRefs(data, packed, &fc); err != nil {
				return err
			}
		case 2:
			e.Value, ok = fc.Double()
		case 3:
			e.Timestamp, ok = fc.Int64()
		}
		if !ok {
			return errWireType
		}
	}
	if b.ExemplarLabels, err = refs.resolve(b.ExemplarLabels, b.Refs[from:]); err != nil {
		return err
	}
	b.Refs = b.Refs[:from]
	of.expanded = refs.expanded
	s.SetError(refs.err())
	e.Labels = batch.Until(e.Labels, b.ExemplarLabels)
	b.Exemplars = append(b.Exemplars, e)
	return nil
}

// decodeMetadataRefs merges a piece of a series' metadata into m.
func decodeMetadataRefs(m *batch.MetadataRefs, src []byte) (err error) {
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			m.Type, ok = enum(&fc)
		case 3:
			m.Help, ok = fc.Uint32()
		case 4:
			m.Unit, ok = fc.Uint32()
		}
		if !ok {
			return errWireType
		}
	}
	return nil
}

// describeV2 resolves a series' metadata, within the bounds of families. It returns nil if there is
// none.
func (b decoder) describeV2(m batch.MetadataRefs, refs *references) *batch.Metadata {
	if m == (batch.MetadataRefs{}) {
		return nil
	}
	if n := len(b.SeriesMetadata); n > 0 && m == b.LastMetadata { // neighbouring series usually belong to the same family
		return &b.SeriesMetadata[n-1]
	}
	help, unit := refs.symbol(m.Help), refs.symbol(m.Unit)
	if !utf8.ValidString(truncate.Prefix(help, batch.MaxFamilyHelp)) || !utf8.ValidString(truncate.Prefix(unit, batch.MaxFamilyUnit)) {
		b.SeriesMetadata, b.LastMetadata = append(b.SeriesMetadata, batch.Metadata{Invalid: true}), m
		return &b.SeriesMetadata[len(b.SeriesMetadata)-1]
	}
	metadata := batch.Metadata{Type: batch.TypeOf(m.Type), Help: truncate.Text(help, batch.MaxFamilyHelp), Unit: truncate.Text(unit, batch.MaxFamilyUnit)}
	if metadata.Help == help {
		metadata.HelpRef = m.Help
	}
	if metadata.Unit == unit {
		metadata.UnitRef = m.Unit
	}
	if refs.beyond || metadata.Type == batch.TypeUnknown && metadata.Help == "" && metadata.Unit == "" {
		return nil
	}
	b.SeriesMetadata, b.LastMetadata = append(b.SeriesMetadata, metadata), m
	return &b.SeriesMetadata[len(b.SeriesMetadata)-1]
}

// checkSymbols computes the info of all symbols. head is the body up to the first series, which
// contains the given number of symbols.
func (b decoder) checkSymbols(head []byte, symbols int, l Limits) error {
	if err := b.Elements.Charge(len(b.Symbols) * batch.InfoBytes); err != nil {
		return err
	}
	b.Bounds = boundsOf(&l)
	b.Info = slices.Grow(b.Info, len(b.Symbols))
	for _, symbol := range b.Symbols {
		b.SymbolBytes += len(symbol)
	}
	if symbols == len(b.Symbols) && isASCII(head) {
		for _, symbol := range b.Symbols {
			b.Info = append(b.Info, b.Bounds.LengthInfo(symbol))
		}
		return nil
	}
	for _, symbol := range b.Symbols {
		b.Info = append(b.Info, b.Bounds.Info(symbol))
	}
	return nil
}

// decodeRefs appends the references of one occurrence of a repeated field: packed ones in data, or
// otherwise the single one in fc. It does not check that the symbols exist.
func (b decoder) decodeRefs(data []byte, packed bool, fc *easyproto.FieldContext) error {
	if !packed {
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
		ref, n := short(data)
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

// decodeUsualRefs appends a series' references if all names are the same as in the previous series,
// in the same order, and the values are usable. Otherwise it changes nothing and reports false.
func (b decoder) decodeUsualRefs(data []byte, s *batch.Series) bool {
	before := batch.Slice(b.Refs, b.Ordered)
	const pair = 6 // bytes that two calls of short may read
	if len(before) == 0 || len(data) < len(before) || cap(data) < len(data)+pair {
		return false
	}
	if b.GrowRefs(len(before)) != nil {
		return false // decodeRefs returns the error
	}
	size, info, dst := int(b.OrderedBytes), b.Info, b.Refs
	refs := dst[len(dst) : len(dst)+len(before)]
	src, at := data[:len(data)+pair], 0
	for i := 0; i+1 < len(before) && i+1 < len(refs); i += 2 {
		if at >= len(data) {
			return false
		}
		name, n := short(src[at:])
		value, m := short(src[at+n:])
		if at += n + m; uint32(name) != before[i] || value >= uint(len(info)) {
			return false
		}
		if old := before[i+1]; uint32(value) != old {
			known := info[value]
			if known&batch.UsableValue == 0 {
				return false
			}
			size += int(known>>batch.LengthShift) - int(info[old]>>batch.LengthShift)
		}
		refs[i], refs[i+1] = uint32(name), uint32(value)
	}
	if at != len(data) || size > math.MaxInt32 {
		return false
	}
	b.Refs, s.LabelBytes = dst[:len(dst)+len(before)], int32(size)
	return true
}

// endRefsV2 ends the labels of a series. They stay references if the batch asks for that and they
// are usable, otherwise they become texts. It counts their expanded size in both cases.
func (b decoder) endRefsV2(s *batch.Series, r *references, known bool) error {
	if known {
		s.Refs = batch.Until(s.Refs, b.Refs)
		b.Ordered, b.OrderedBytes = s.Refs, s.LabelBytes
	}
	if known || b.References && b.EndRefs(s) {
		if r.expanded += int(s.LabelBytes) + s.Refs.Len()/2*labelSize; r.expanded > r.limit {
			return errExpanded
		}
		return nil
	}
	var err error
	b.Labels, err = r.resolve(b.Labels, b.Refs[s.Refs.From:])
	b.Refs = b.Refs[:s.Refs.From]
	s.Refs = batch.Extent{}
	return err
}
