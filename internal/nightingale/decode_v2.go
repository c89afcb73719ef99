package nightingale

import (
	"encoding/binary"
	"errors"
	"math"
	"slices"

	"github.com/VictoriaMetrics/easyproto"

	"github.com/aviaryhq/aviary/internal/door"
)

var (
	errForeignV2 = errors.New("no field of io.prometheus.write.v2.Request in it: is it a remote write 1.0 body?")
	errReference = errors.New("a reference is not an unsigned integer of 32 bits")
	errExpanded  = errors.New("the references expand beyond the limit")
)

// decodeV2 decodes an io.prometheus.write.v2.Request. What is wrong with one
// series, such as a reference beyond the symbols, is noted as its flaw: the others
// are written. What protobuf cannot read is wrong with the whole request.
//
// A few bytes of references can name large symbols again and again. What they
// expand to is bounded as a decoded body is, and counted in b.expanded.
func decodeV2(b *batch, body []byte, l Limits) error {
	b.elements.limit = int(l.MemoryBytes)
	all, err := b.decodeSymbolsV2(body, l)
	if err != nil || all.series == 0 {
		return err
	}
	if len(b.symbols) == 0 || b.symbols[0] != "" {
		return door.Invalid("first_symbol", "the first of the symbols must be the empty string")
	}
	if b.form.symbolic {
		if err := b.lookAtSymbols(body[:len(body)-len(all.rest)], all.head, l); err != nil {
			return err
		}
	}
	if err := b.elements.charge(all.series * (seriesBytes + metadataBytes)); err != nil {
		return err
	}
	if cap(b.about) < all.series { // series point into it: it must not move
		b.about = make([]metadata, 0, all.series)
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
	return door.TooLarge("expanded_bytes", "the body's references expand to more than %d bytes", int64(l.DecodedBytes))
}

// seriesV2 is where in a body the series are.
type seriesV2 struct {
	series int    // how many
	rest   []byte // of the body, from the first of them on
	head   int    // symbols that stand before it, mostly all
}

// decodeSymbolsV2 gathers the symbols, wherever in the body they stand, and counts
// the series.
func (b *batch) decodeSymbolsV2(body []byte, l Limits) (all seriesV2, err error) {
	known := len(body) == 0 // an empty request is complete with nothing written
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
				return all, door.TooLarge("series", "the request has more than %d series", l.Series)
			}
			if all.series == 1 {
				all.rest, all.head = field, len(b.symbols)
			}
			continue
		}
		if b.expanded += symbolSize; b.expanded > int(l.DecodedBytes) {
			return all, expandsTooFar(l)
		}
		if err := b.elements.charge(symbolBytes); err != nil {
			return all, err
		}
		b.symbols = append(b.symbols, text(data))
	}
	if !known {
		return all, malformed("body", errForeignV2)
	}
	return all, nil
}

// What a symbol takes in memory besides its text, and what a label takes in a
// request of version 1 besides its two texts.
const (
	symbolSize = 16
	labelSize  = 6
)

// references turns references to symbols into labels. They come in pairs, but not
// necessarily both of a pair in one piece.
type references struct {
	symbols  []string
	elements *elements
	name     string
	half     bool // a name waits for its value
	beyond   bool // one pointed beyond the symbols
	expanded int
	limit    int // of expanded
}

// decode appends the labels of a repeated field's occurrence: packed in data, or else
// the one that fc has.
func (r *references) decode(dst []label, data []byte, packed bool, fc *easyproto.FieldContext) ([]label, error) {
	if !packed {
		one, ok := fc.Uint32()
		if !ok {
			return dst, errReference
		}
		return r.add(dst, uint64(one))
	}
	if !r.half {
		var err error
		if dst, data, err = r.pairs(dst, data); err != nil {
			return dst, err
		}
	}
	for len(data) > 0 {
		ref, n := binary.Uvarint(data)
		if n <= 0 || ref > math.MaxUint32 {
			return dst, errReference
		}
		data = data[n:]
		var err error
		if dst, err = r.add(dst, ref); err != nil {
			return dst, err
		}
		if r.expanded > r.limit {
			return dst, errExpanded
		}
	}
	return dst, nil
}

// pairs decodes as many pairs as have nothing special to them, which is nearly all
// of a request, and returns the rest.
func (r *references) pairs(dst []label, data []byte) ([]label, []byte, error) {
	room, err := r.elements.labelRoom()
	if err != nil {
		return dst, data, err
	}
	symbols, expanded, from := r.symbols, r.expanded, len(dst)
	for len(data) >= 6 && expanded <= r.limit {
		name, n := short(data)
		value, m := short(data[n:])
		if name >= uint(len(symbols)) || value >= uint(len(symbols)) {
			break
		}
		if len(dst)-from == room {
			r.elements.useLabels(room)
			if room, err = r.elements.labelRoom(); err != nil {
				return dst, data, err
			}
			from = len(dst)
		}
		l := label{symbols[name], symbols[value]}
		expanded += len(l.name) + len(l.value) + labelSize
		dst = append(dst, l)
		data = data[n+m:]
	}
	r.elements.useLabels(len(dst) - from)
	r.expanded = expanded
	return dst, data, nil
}

// short decodes a varint of at most 3 bytes. A longer one gives a number that is
// beyond any symbol.
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

func (r *references) add(dst []label, ref uint64) ([]label, error) {
	symbol := r.symbol(ref)
	r.half = !r.half
	if r.half {
		r.name = symbol
		return dst, nil
	}
	if err := r.elements.charge(labelBytes); err != nil {
		return dst, err
	}
	r.expanded += len(r.name) + len(symbol) + labelSize
	return append(dst, label{r.name, symbol}), nil
}

func (r *references) symbol(ref uint64) string {
	if ref >= uint64(len(r.symbols)) {
		r.beyond = true
		return ""
	}
	return r.symbols[ref]
}

// flaw ends a run of pairs and returns what was wrong with it.
func (r *references) flaw() flaw {
	odd := r.half
	r.half = false
	switch {
	case r.beyond:
		return flawReference
	case odd:
		return flawOddReferences
	default:
		return flawless
	}
}

// decodeSeriesV2 decodes a TimeSeries. limit bounds b.expanded.
func (b *batch) decodeSeriesV2(src []byte, limit int) (err error) {
	s := series{
		labels: mark(b.labels), refs: mark(b.refs), samples: mark(b.samples), exemplars: mark(b.exemplars), histograms: mark(b.histograms),
	}
	refs := references{symbols: b.symbols, elements: &b.elements, expanded: b.expanded + len(src), limit: limit}
	var about aboutV2
	known := false  // that the labels are usable
	var start int64 // of the whole series, as release candidate 3 has it
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
			if b.form.symbolic {
				if known = ok && len(b.refs) == int(s.refs.from) && b.decodeUsualRefs(data, &s); !known {
					b.refs, err = b.decodeRefs(b.refs, data, ok, &fc)
				}
			} else {
				b.labels, err = refs.decode(b.labels, data, ok, &fc)
			}
		case 2:
			err = b.decodeSample(data, true)
		case 3:
			err = b.decodeHistogram(data, true)
		case 4:
			err = b.decodeExemplarV2(data, &refs, &s)
		case 5:
			err = about.decode(data)
		}
		if err != nil {
			return err
		}
	}
	if b.form.symbolic {
		if err := b.endRefsV2(&s, &refs, known); err != nil {
			return err
		}
	}
	s.labels, s.samples = upTo(s.labels, b.labels), upTo(s.samples, b.samples)
	s.exemplars, s.histograms = upTo(s.exemplars, b.exemplars), upTo(s.histograms, b.histograms)
	if start != 0 {
		b.startAt(&s, start)
	}
	made := len(b.about)
	s.about = b.describeV2(about, &refs)
	if err := b.chargeAbout(made); err != nil {
		return err
	}
	s.note(refs.flaw())
	switch {
	case s.samples.len() > 0 && s.histograms.len() > 0:
		s.note(flawBoth)
	case s.samples.len() == 0 && s.histograms.len() == 0:
		s.note(flawNeither)
	}
	if b.expanded = refs.expanded; b.expanded > limit {
		return errExpanded
	}
	b.series = append(b.series, s)
	return nil
}

// startAt gives the series' start to the samples and histograms without their own.
func (b *batch) startAt(s *series, start int64) {
	samples, histograms := of(b.samples, s.samples), of(b.histograms, s.histograms)
	for i := range samples {
		if samples[i].start == 0 {
			samples[i].start = start
		}
	}
	for i := range histograms {
		if histograms[i].start == 0 {
			histograms[i].start = start
		}
	}
}

// decodeExemplarV2 decodes an exemplar of s. Its references are apart from those
// of the series, of which one may be waiting for its pair.
func (b *batch) decodeExemplarV2(src []byte, of *references, s *series) (err error) {
	if err := b.elements.charge(exemplarBytes); err != nil {
		return err
	}
	refs := references{symbols: of.symbols, elements: of.elements, expanded: of.expanded, limit: of.limit}
	e := exemplar{labels: mark(b.marks)}
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			data, packed := fc.MessageData()
			if b.marks, err = refs.decode(b.marks, data, packed, &fc); err != nil {
				return err
			}
		case 2:
			e.value, ok = fc.Double()
		case 3:
			e.timestamp, ok = fc.Int64()
		}
		if !ok {
			return errWireType
		}
	}
	of.expanded = refs.expanded
	s.note(refs.flaw())
	e.labels = upTo(e.labels, b.marks)
	b.exemplars = append(b.exemplars, e)
	return nil
}

// aboutV2 is a series' metadata. Given in several pieces, they add up.
type aboutV2 struct {
	kind       int32
	help, unit uint32
}

func (m *aboutV2) decode(src []byte) (err error) {
	var fc easyproto.FieldContext
	for len(src) > 0 {
		if src, err = nextField(&fc, src); err != nil {
			return err
		}
		ok := true
		switch fc.FieldNum {
		case 1:
			m.kind, ok = enum(&fc)
		case 3:
			m.help, ok = fc.Uint32()
		case 4:
			m.unit, ok = fc.Uint32()
		}
		if !ok {
			return errWireType
		}
	}
	return nil
}

// describeV2 resolves a series' metadata, within the bounds that families have; nil
// when it tells nothing.
func (b *batch) describeV2(m aboutV2, refs *references) *metadata {
	if m == (aboutV2{}) {
		return nil
	}
	if n := len(b.about); n > 0 && m == b.aboutRefs { // neighbours are mostly of one family
		return &b.about[n-1]
	}
	help, unit := refs.symbol(uint64(m.help)), refs.symbol(uint64(m.unit))
	about := metadata{kind: kindName(m.kind), help: door.Cut(help, maxFamilyHelp), unit: door.Cut(unit, maxFamilyUnit)}
	if about.help == help {
		about.helpRef = m.help
	}
	if about.unit == unit {
		about.unitRef = m.unit
	}
	if refs.beyond || about.kind == kindUnknown && about.help == "" && about.unit == "" {
		return nil
	}
	b.about, b.aboutRefs = append(b.about, about), m
	return &b.about[len(b.about)-1]
}

// lookAtSymbols learns what series need to know of their symbols. head is the body up
// to the first series, with so many of them.
func (b *batch) lookAtSymbols(head []byte, symbols int, l Limits) error {
	if err := b.elements.charge(len(b.symbols) * infoBytes); err != nil {
		return err
	}
	b.bounds = boundsOf(&l)
	b.info = slices.Grow(b.info, len(b.symbols))
	for _, symbol := range b.symbols {
		b.symbolBytes += len(symbol)
	}
	if symbols == len(b.symbols) && isASCII(head) {
		for _, symbol := range b.symbols {
			b.info = append(b.info, b.bounds.lengthInfo(symbol))
		}
		return nil
	}
	for _, symbol := range b.symbols {
		b.info = append(b.info, b.bounds.info(symbol))
	}
	return nil
}

// decodeRefs does what references.decode does, whatever they refer to.
func (b *batch) decodeRefs(dst []uint32, data []byte, packed bool, fc *easyproto.FieldContext) ([]uint32, error) {
	if !packed {
		one, ok := fc.Uint32()
		if !ok {
			return dst, errReference
		}
		return append(dst, one), b.elements.charge(refBytes)
	}
	if err := b.elements.charge(len(data) * refBytes); err != nil { // as if each had one byte
		return dst, err
	}
	from, size := len(dst), len(data)
	dst = slices.Grow(dst, size)
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
			return dst, errReference
		}
		dst = append(dst, uint32(ref))
		data = data[n:]
	}
	b.elements.left += (size - (len(dst) - from)) * refBytes
	return dst, nil
}

// decodeUsualRefs appends a series' references where their names are those of the series
// before, one by one, and so in order, and the values can be used. It reports false for
// any other, and has then done nothing.
func (b *batch) decodeUsualRefs(data []byte, s *series) bool {
	before := of(b.refs, b.ordered)
	const pair = 6 // bytes that short may look at
	if len(before) == 0 || len(data) < len(before) || cap(data) < len(data)+pair {
		return false
	}
	left := b.elements.left - len(before)*refBytes
	if left < 0 {
		return false
	}
	size, info := int(b.orderedBytes), b.info
	dst := slices.Grow(b.refs, len(before))
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
			if known&usableValue == 0 {
				return false
			}
			size += int(known>>lengthShift) - int(info[old]>>lengthShift)
		}
		refs[i], refs[i+1] = uint32(name), uint32(value)
	}
	if at != len(data) || size > math.MaxInt32 {
		return false
	}
	b.refs, b.elements.left, s.labelBytes = dst[:len(dst)+len(before)], left, int32(size)
	return true
}

// endRefsV2 ends the labels of a series. What they expand to counts whether they become
// texts or not.
func (b *batch) endRefsV2(s *series, r *references, known bool) error {
	if known {
		s.refs = upTo(s.refs, b.refs)
		b.ordered, b.orderedBytes = s.refs, s.labelBytes
	}
	if known || b.endRefs(s) {
		if r.expanded += int(s.labelBytes) + s.refs.len()/2*labelSize; r.expanded > r.limit {
			return errExpanded
		}
		if b.form.lean {
			return nil
		}
		return b.spell(s)
	}
	for _, ref := range of(b.refs, s.refs) {
		var err error
		if b.labels, err = r.add(b.labels, uint64(ref)); err != nil {
			return err
		}
		if r.expanded > r.limit {
			return errExpanded
		}
	}
	b.dropRefs(s)
	return nil
}
