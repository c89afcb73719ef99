package nightingale

import (
	"encoding/binary"
	"math"

	"slices"
	"strconv"
)

const packedV2Format = "packed-v2"

// The packed-v2 format: one message holds many series of one partition as a standard
// io.prometheus.write.v2.Request with a symbol table of its own, so that the topic's
// messages can be read by whatever reads remote write 2.0 (snappy apart: the publisher
// compresses). Partitions, keys, order and message_bytes are as with packed.
//
// All that remote write has is kept: type, unit and help of a series' family, start
// timestamps, exemplars and native histograms. What 1.0 requests tell about families
// is put into the series of those families, as with json: a 2.0 request has no other
// place for it.
//
// A text stands in a message once, in front of the series: those of one message are
// labelled by numbers. Where a request had references, or intern has made some, a
// label costs two look-ups in an array.
func encodePackedV2(b *batch, out *outgoing) {
	p := &out.packing
	partitions := max(p.partitions, 1)
	p.sort(b, partitions)
	out.room(b.packer.room(b, partitions) + 16*partitions)
	b.packer.limit = p.limit
	from := int32(0)
	for partition, to := range p.next {
		if from < to && !b.packer.pack(b, out, partition, p.order[from:to]) {
			return
		}
		from = to
	}
	out.finish()
}

// symbolFieldSize is what a symbol takes in a message besides its text, mostly.
const symbolFieldSize = 2

// packedV2Size is an upper bound where no text is used by two series.
func packedV2Size(b *batch) int {
	series, labels := b.packedV2Parts()
	b.packer.ofSeries, b.packer.ofLabels = series/max(len(b.series), 1)+1, labels/max(len(b.series), 1)+1
	return series + labels
}

// room is about what the messages of the batch's series take. Where a topic gets only
// some of those that packedV2Size has seen, they are taken for average ones.
func (p *symbolPacker) room(b *batch, partitions int) int {
	texts := b.symbolBytes + symbolFieldSize*len(b.symbols)
	return len(b.series)*p.ofSeries + min(len(b.series)*p.ofLabels, texts*partitions)
}

// packedV2Parts estimates what the series take without their texts, and the texts of
// all of their labels.
func (b *batch) packedV2Parts() (series, labels int) {
	for i := range b.series {
		s := &b.series[i]
		size := 12 + 32*s.samples.len() + b.partsSize(s)
		if s.refs.len() > 0 {
			size += 3 * s.refs.len()
			labels += int(s.labelBytes) + symbolFieldSize*s.refs.len()
		} else {
			n := s.labels.len()
			size += 6 * n
			labels += labelsSize(of(b.labels, s.labels))
		}
		if m := s.about; m != nil {
			size += 16
			labels += len(m.help) + len(m.unit)
		}
		series += size
	}
	return series, labels
}

// symbolPacker makes messages of one request. A symbol's number in a message is that
// which it got in the count of all messages, less what stood there when the message
// began; so nothing is to be cleared between messages.
type symbolPacker struct {
	ofSeries, ofLabels int // estimates of a series without its texts, and of these

	limit  int      // bytes of a message; 0 for no limit
	number []uint32 // of each symbol, in the count; no more than base where the message has it not
	count  uint32
	base   uint32
	series []byte // of the message; they follow its symbols
	err    error  // of a text that there was no room for
}

func (p *symbolPacker) reset() {
	p.number, p.count, p.base, p.series, p.err = p.number[:0], 0, 0, p.series[:0], nil
}

// size is the memory that the packer has room for.
func (p *symbolPacker) size() int { return cap(p.number)*refBytes + cap(p.series) }

// pack makes the messages of a partition, of the series in that order. It reports false
// when there is no room: then out.err says why.
func (p *symbolPacker) pack(b *batch, out *outgoing, partition int, order []int32) bool {
	p.cover(b)
	begun := false
	for _, i := range order {
		s := &b.series[i]
		if s.entries() == 0 {
			continue // a 1.0 request may have such; there is nothing to tell
		}
		if out.apart = len(p.series); !out.fits() {
			return false
		}
		latest := b.latest(s)
		if begun {
			symbols, series := len(out.arena), len(p.series)
			p.add(b, out, s)
			last := &out.cuts[len(out.cuts)-1]
			if p.limit == 0 || len(out.arena)-last.payload+len(p.series) <= p.limit {
				last.latest = max(last.latest, latest)
				continue
			}
			out.arena, p.series = out.arena[:symbols], p.series[:series] // it begins the next message
			p.finish(out)
		}
		p.begin(out, partition, latest)
		p.add(b, out, s)
		begun = true
	}
	if begun {
		p.finish(out)
	}
	if p.err != nil && out.err == nil {
		out.err = p.err
	}
	return out.err == nil
}

// begin starts a message. Its first symbol is the empty one.
func (p *symbolPacker) begin(out *outgoing, partition int, latest int64) {
	at := len(out.arena)
	out.arena = strconv.AppendInt(out.arena, int64(partition), 10)
	out.cuts = append(out.cuts, cutMark{key: at, payload: len(out.arena), partition: partition, latest: latest})
	out.arena = append(out.arena, 4<<3|wireBytes, 0)
	p.base = p.count
}

// finish puts the series behind the symbols.
func (p *symbolPacker) finish(out *outgoing) {
	out.arena = append(out.arena, p.series...)
	p.series, out.apart = p.series[:0], 0
}

// cover makes number reach to the last symbol.
func (p *symbolPacker) cover(b *batch) {
	if n := len(p.number); n < len(b.symbols) {
		p.number = slices.Grow(p.number, len(b.symbols)-n)[:len(b.symbols)]
		clear(p.number[n:])
	}
}

// local returns a symbol's number in the message, and writes the symbol where it is new
// there.
func (p *symbolPacker) local(b *batch, out *outgoing, ref uint32) uint32 {
	if n := p.number[ref]; n > p.base {
		return n - p.base
	}
	p.count++
	p.number[ref] = p.count
	text := b.symbols[ref]
	out.arena = binary.AppendUvarint(append(out.arena, 4<<3|wireBytes), uint64(len(text)))
	out.arena = append(out.arena, text...)
	return p.count - p.base
}

// localText does so for a text, 0 for the empty one.
func (p *symbolPacker) localText(b *batch, out *outgoing, text string) uint32 {
	if text == "" {
		return 0
	}
	ref, err := b.intern(text)
	if err != nil {
		p.err = err
		return 0
	}
	p.cover(b)
	return p.local(b, out, ref)
}

// add writes a series. One with samples and histograms, which 1.0 requests may have, is
// two: a TimeSeries of 2.0 has one kind alone.
func (p *symbolPacker) add(b *batch, out *outgoing, s *series) {
	if s.samples.len() == 0 || s.histograms.len() == 0 {
		p.addOne(b, out, s)
		return
	}
	one := *s
	one.histograms = extent{}
	p.addOne(b, out, &one)
	one = *s
	one.samples, one.exemplars = extent{}, extent{}
	p.addOne(b, out, &one)
}

// addOne writes a series as a field of a Request.
func (p *symbolPacker) addOne(b *batch, out *outgoing, s *series) {
	dst, at := openField(p.series, 5)
	dst = p.addRefs(dst, b, out, s)
	for i := range of(b.samples, s.samples) {
		dst = appendSampleV2(dst, &of(b.samples, s.samples)[i])
	}
	for i := range of(b.histograms, s.histograms) {
		h := &of(b.histograms, s.histograms)[i]
		var at int
		dst, at = openField(dst, 3)
		dst = b.appendHistogramFields(dst, h)
		dst = appendVarint(dst, 17, uint64(h.start))
		dst = closeField(dst, at)
	}
	for _, e := range of(b.exemplars, s.exemplars) {
		var at int
		dst, at = openField(dst, 4)
		dst = p.addLabels(dst, b, out, of(b.marks, e.labels))
		dst = appendDouble(dst, 2, e.value)
		dst = appendVarint(dst, 3, uint64(e.timestamp))
		dst = closeField(dst, at)
	}
	if s.about != nil {
		dst = p.addAbout(dst, b, out, s.about)
	}
	p.series = closeField(dst, at)
}

// addRefs writes the labels of a series.
func (p *symbolPacker) addRefs(dst []byte, b *batch, out *outgoing, s *series) []byte {
	refs := of(b.refs, s.refs)
	if len(refs) == 0 {
		return p.addLabels(dst, b, out, of(b.labels, s.labels))
	}
	dst, from := openField(slices.Grow(dst, 2+binary.MaxVarintLen32*len(refs)), 1)
	buf, at := dst[:cap(dst)], from
	number, base := p.number, p.base
	for _, ref := range refs {
		n := number[ref]
		if n <= base {
			n = base + p.local(b, out, ref)
		}
		switch n -= base; {
		case n < 0x80:
			buf[at] = byte(n)
			at++
		case n < 0x4000:
			buf[at+1], buf[at] = byte(n>>7), byte(n)|0x80
			at += 2
		default:
			at += binary.PutUvarint(buf[at:], uint64(n))
		}
	}
	return closeField(dst[:at], from)
}

// appendSampleV2 writes a Sample.
func appendSampleV2(dst []byte, v *sample) []byte {
	const most = 2 + 9 + 2*(1+binary.MaxVarintLen64)
	from := len(dst)
	buf := slices.Grow(dst, most)[:from+most]
	at := from + 2
	if bits := math.Float64bits(v.value); bits != 0 {
		buf[at] = 1<<3 | wireFixed64
		binary.LittleEndian.PutUint64(buf[at+1:], bits)
		at += 9
	}
	if v.timestamp != 0 {
		buf[at] = 2<<3 | wireVarint
		at += 1 + binary.PutUvarint(buf[at+1:], uint64(v.timestamp))
	}
	if v.start != 0 {
		buf[at] = 3<<3 | wireVarint
		at += 1 + binary.PutUvarint(buf[at+1:], uint64(v.start))
	}
	buf[from], buf[from+1] = 2<<3|wireBytes, byte(at-from-2)
	return buf[:at]
}

// addLabels writes labels that are texts.
func (p *symbolPacker) addLabels(dst []byte, b *batch, out *outgoing, labels []label) []byte {
	if len(labels) == 0 {
		return dst
	}
	dst, at := openField(dst, 1)
	for i := range labels {
		dst = binary.AppendUvarint(dst, uint64(p.localText(b, out, labels[i].name)))
		dst = binary.AppendUvarint(dst, uint64(p.localText(b, out, labels[i].value)))
	}
	return closeField(dst, at)
}

// addAbout writes what is known of a series' family.
func (p *symbolPacker) addAbout(dst []byte, b *batch, out *outgoing, m *metadata) []byte {
	help, unit := p.aboutText(b, out, m.help, m.helpRef), p.aboutText(b, out, m.unit, m.unitRef)
	dst, at := openField(dst, 5)
	dst = appendVarint(dst, 1, uint64(kindNumber(m.kind)))
	dst = appendVarint(dst, 3, uint64(help))
	dst = appendVarint(dst, 4, uint64(unit))
	return closeField(dst, at)
}

func (p *symbolPacker) aboutText(b *batch, out *outgoing, text string, ref uint32) uint32 {
	if ref == 0 || text == "" {
		return p.localText(b, out, text)
	}
	return p.local(b, out, ref)
}
