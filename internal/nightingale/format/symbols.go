package format

import (
	"encoding/binary"
	"math"
	"slices"
	"strconv"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// symbolPacker makes the messages of one request. It counts symbols over all messages. A symbol's
// number in a message is its count minus the count at the beginning of the message. So nothing must
// be cleared between messages.
type symbolPacker struct {
	ofSeries, ofLabels int // estimated size of a series without its texts, and of its texts

	limit  int      // bytes of a message; 0 for no limit
	number []uint32 // count of each symbol; at most base if the message does not have the symbol
	count  uint32
	base   uint32
	series []byte // encoded series of the message; they follow its symbols
	err    error  // the error of Intern
}

func (p *symbolPacker) reset() {
	p.number, p.count, p.base, p.series, p.err = p.number[:0], 0, 0, p.series[:0], nil
}

// size returns the allocated memory in bytes.
func (p *symbolPacker) size() int { return cap(p.number)*batch.RefBytes + cap(p.series) }

// pack makes the messages of a partition from the series in this order. It returns false if the
// memory is used up: then out.Err says why.
func (p *symbolPacker) pack(b *batch.Batch, out *Messages, partition int, order []int32) bool {
	p.cover(b)
	begun := false
	for _, i := range order {
		s := &b.Series[i]
		if s.Entries() == 0 {
			continue // possible in a 1.0 request; there is nothing to publish
		}
		if out.apart = len(p.series); !out.fits() {
			return false
		}
		if begun {
			symbols, series := len(out.arena), len(p.series)
			if p.add(b, out, s); p.err != nil {
				out.Err = p.err
				return false
			}
			last := &out.cuts[len(out.cuts)-1]
			if p.limit == 0 || len(out.arena)-last.payload+len(p.series) <= p.limit {
				out.addSeries(b, s)
				continue
			}
			out.arena, p.series = out.arena[:symbols], p.series[:series] // remove the series again: it begins the next message
			p.finish(out)
		}
		if !out.publishIfFull() {
			return false
		}
		p.begin(out, partition)
		out.addSeries(b, s)
		if p.add(b, out, s); p.err != nil {
			out.Err = p.err
			return false
		}
		begun = true
	}
	if begun {
		p.finish(out)
	}
	return out.Err == nil
}

// begin starts a message. Its first symbol is the empty one.
func (p *symbolPacker) begin(out *Messages, partition int) {
	out.beginPartition(partition)
	out.arena = append(out.arena, 4<<3|batch.WireBytes, 0)
	p.base = p.count
}

// finish appends the series after the symbols.
func (p *symbolPacker) finish(out *Messages) {
	out.arena = append(out.arena, p.series...)
	p.series, out.apart = p.series[:0], 0
}

// cover extends number to the last symbol.
func (p *symbolPacker) cover(b *batch.Batch) {
	if n := len(p.number); n < len(b.Symbols) {
		p.number = slices.Grow(p.number, len(b.Symbols)-n)[:len(b.Symbols)]
		clear(p.number[n:])
	}
}

// local returns a symbol's number in the message. It appends the symbol if the message does not
// have it yet.
func (p *symbolPacker) local(b *batch.Batch, out *Messages, ref uint32) uint32 {
	if n := p.number[ref]; n > p.base {
		return n - p.base
	}
	p.count++
	p.number[ref] = p.count
	text := b.Symbols[ref]
	out.arena = binary.AppendUvarint(append(out.arena, 4<<3|batch.WireBytes), uint64(len(text)))
	out.arena = append(out.arena, text...)
	return p.count - p.base
}

// localText is local for a text. It returns 0 for the empty text.
func (p *symbolPacker) localText(b *batch.Batch, out *Messages, text string) uint32 {
	if text == "" {
		return 0
	}
	ref, err := b.Intern(text)
	if err != nil {
		p.err = err
		return 0
	}
	p.cover(b)
	return p.local(b, out, ref)
}

// add appends a series. It splits a series with samples and histograms, which 1.0 requests may
// contain, into two: a TimeSeries of 2.0 may have only one of both kinds.
func (p *symbolPacker) add(b *batch.Batch, out *Messages, s *batch.Series) {
	if s.Samples.Len() == 0 || s.Histograms.Len() == 0 {
		p.addOne(b, out, s)
		return
	}
	one := *s
	one.Histograms = batch.Extent{}
	p.addOne(b, out, &one)
	one = *s
	one.Samples, one.Exemplars = batch.Extent{}, batch.Extent{}
	p.addOne(b, out, &one)
}

// addOne appends a series as a field of a Request.
func (p *symbolPacker) addOne(b *batch.Batch, out *Messages, s *batch.Series) {
	dst, at := batch.OpenField(p.series, 5)
	dst = p.addRefs(dst, b, out, s)
	for i := range batch.Slice(b.Samples, s.Samples) {
		dst = appendSampleV2(dst, &batch.Slice(b.Samples, s.Samples)[i])
	}
	for i := range batch.Slice(b.Histograms, s.Histograms) {
		h := &batch.Slice(b.Histograms, s.Histograms)[i]
		var at int
		dst, at = batch.OpenField(dst, 3)
		dst = b.AppendHistogramFields(dst, h)
		dst = batch.AppendVarint(dst, 17, uint64(h.Start))
		dst = batch.CloseField(dst, at)
	}
	for _, e := range batch.Slice(b.Exemplars, s.Exemplars) {
		var at int
		dst, at = batch.OpenField(dst, 4)
		dst = p.addLabels(dst, b, out, batch.Slice(b.ExemplarLabels, e.Labels))
		dst = batch.AppendDouble(dst, 2, e.Value)
		dst = batch.AppendVarint(dst, 3, uint64(e.Timestamp))
		dst = batch.CloseField(dst, at)
	}
	if s.Metadata != nil {
		dst = p.addAbout(dst, b, out, s.Metadata)
	}
	p.series = batch.CloseField(dst, at)
}

// addRefs appends the labels of a series.
func (p *symbolPacker) addRefs(dst []byte, b *batch.Batch, out *Messages, s *batch.Series) []byte {
	refs := batch.Slice(b.Refs, s.Refs)
	if len(refs) == 0 {
		return p.addLabels(dst, b, out, batch.Slice(b.Labels, s.Labels))
	}
	dst, from := batch.OpenField(slices.Grow(dst, 2+binary.MaxVarintLen32*len(refs)), 1)
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
	return batch.CloseField(dst[:at], from)
}

// appendSampleV2 appends a Sample.
func appendSampleV2(dst []byte, v *batch.Sample) []byte {
	const most = 2 + 9 + 2*(1+binary.MaxVarintLen64)
	from := len(dst)
	buf := slices.Grow(dst, most)[:from+most]
	at := from + 2
	if bits := math.Float64bits(v.Value); bits != 0 {
		buf[at] = 1<<3 | batch.WireFixed64
		binary.LittleEndian.PutUint64(buf[at+1:], bits)
		at += 9
	}
	if v.Timestamp != 0 {
		buf[at] = 2<<3 | batch.WireVarint
		at += 1 + binary.PutUvarint(buf[at+1:], uint64(v.Timestamp))
	}
	if v.Start != 0 {
		buf[at] = 3<<3 | batch.WireVarint
		at += 1 + binary.PutUvarint(buf[at+1:], uint64(v.Start))
	}
	buf[from], buf[from+1] = 2<<3|batch.WireBytes, byte(at-from-2)
	return buf[:at]
}

// addLabels appends labels that are texts.
func (p *symbolPacker) addLabels(dst []byte, b *batch.Batch, out *Messages, labels []batch.Label) []byte {
	if len(labels) == 0 {
		return dst
	}
	dst, at := batch.OpenField(dst, 1)
	for i := range labels {
		dst = binary.AppendUvarint(dst, uint64(p.localText(b, out, labels[i].Name)))
		dst = binary.AppendUvarint(dst, uint64(p.localText(b, out, labels[i].Value)))
	}
	return batch.CloseField(dst, at)
}

// addAbout appends the metadata of a series' family.
func (p *symbolPacker) addAbout(dst []byte, b *batch.Batch, out *Messages, m *batch.Metadata) []byte {
	help, unit := p.aboutText(b, out, m.Help, m.HelpRef), p.aboutText(b, out, m.Unit, m.UnitRef)
	dst, at := batch.OpenField(dst, 5)
	dst = batch.AppendVarint(dst, 1, uint64(m.Type))
	dst = batch.AppendVarint(dst, 3, uint64(help))
	dst = batch.AppendVarint(dst, 4, uint64(unit))
	return batch.CloseField(dst, at)
}

func (p *symbolPacker) aboutText(b *batch.Batch, out *Messages, text string, ref uint32) uint32 {
	if ref == 0 || text == "" {
		return p.localText(b, out, text)
	}
	return p.local(b, out, ref)
}

// beginPartition begins a message whose key is the number of its partition.
func (o *Messages) beginPartition(partition int) {
	at := len(o.arena)
	o.arena = strconv.AppendInt(o.arena, int64(partition), 10)
	o.cuts = append(o.cuts, cutMark{key: at, payload: len(o.arena), partition: int32(partition)})
}
