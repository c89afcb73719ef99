package format

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// Packing holds the settings of the packed format, which may differ between topics, and its working
// memory.
//
// It counts symbols over all messages. A symbol's number in a message is its count minus the count
// at the beginning of the message. So nothing must be cleared between messages.
type Packing struct {
	Partitions int // number of partitions of the topic; 0 means 1
	Limit      int // maximum size of a message in bytes; 0: no limit

	scratch   []byte
	partition []int32 // of each series
	next      []int32 // position in order for the next series of each partition
	order     []int32 // indexes of the series, grouped by partition

	seriesSize, labelsSize int // average estimated size of a series without its labels, and of its labels

	counts []uint32 // count of each symbol; at most base if the message does not have the symbol
	count  uint32
	base   uint32
	series []byte // encoded series of the message; they follow its symbols
}

// encodePacked writes the packed format: a message holds many series of one partition as a standard
// io.prometheus.write.v2.Request with a symbol table of its own, without snappy, because the
// publisher compresses. Series of one partition keep the order of the request, within a message and
// across messages. A message has at most Limit bytes, or a single series that is larger.
//
// A series is on the partition to which its key in the other formats would route. The message's key
// is the decimal number of the partition, so that a Key_Shared subscription also keeps each series
// in order. Metadata of 1.0 requests is added to the series of their families.
func encodePacked(b *batch.Batch, p *Packing, out *Messages) {
	partitions := max(p.Partitions, 1)
	p.sort(b, partitions)
	// A topic may get only some of the series that packedSize has seen.
	texts := b.SymbolBytes + symbolOverhead*len(b.Symbols)
	out.newArena(len(b.Series)*p.seriesSize + min(len(b.Series)*p.labelsSize, texts*partitions) + 16*partitions)
	from := int32(0)
	for partition, to := range p.next {
		if from < to && !p.pack(b, out, partition, p.order[from:to]) {
			return
		}
		from = to
	}
	out.makeRecords()
}

// Reset prepares the memory for another request.
func (p *Packing) Reset() {
	p.counts, p.count, p.base, p.series = p.counts[:0], 0, 0, p.series[:0]
}

// Size returns the allocated memory in bytes.
func (p *Packing) Size() int { return cap(p.counts)*batch.RefBytes + cap(p.series) }

// symbolOverhead is how many bytes a symbol usually takes in a message besides its text.
const symbolOverhead = 2

// packedSize estimates the size as if no two series shared a text: usually too high.
func packedSize(b *batch.Batch, p *Packing) int {
	series, labels := 0, 0
	for i := range b.Series {
		s := &b.Series[i]
		series += 12 + 32*s.Samples.Len() + b.PartsSize(s) + 3*s.Refs.Len() + 6*s.Labels.Len()
		labels += int(s.LabelBytes) + symbolOverhead*s.Refs.Len() + batch.LabelsSize(batch.Slice(b.Labels, s.Labels))
		if m := s.Metadata; m != nil {
			series += 16
			labels += len(m.Help) + len(m.Unit)
		}
	}
	n := max(len(b.Series), 1)
	p.seriesSize, p.labelsSize = series/n+1, labels/n+1
	return series + labels
}

// sort fills order, and sets next to the end of each partition's series in order. With more than
// one partition it computes the keys that Validate has not computed.
func (p *Packing) sort(b *batch.Batch, partitions int) {
	p.next = append(p.next[:0], make([]int32, partitions)...)
	p.partition = slices.Grow(p.partition[:0], len(b.Series))[:len(b.Series)]
	p.order = slices.Grow(p.order[:0], len(b.Series))[:len(b.Series)]
	for i := range b.Series {
		s := &b.Series[i]
		at := int32(0)
		if partitions > 1 {
			if b.References {
				s.Key, p.scratch = b.SeriesKey(s, p.scratch)
			}
			at = int32(keyHash(s.Key) % uint32(partitions))
		}
		p.partition[i] = at
		p.next[at]++
	}
	begin := int32(0)
	for i, n := range p.next {
		p.next[i], begin = begin, begin+n
	}
	for i, at := range p.partition {
		p.order[p.next[at]] = int32(i)
		p.next[at]++
	}
}

// keyHash returns Java's String hash of the key's 16 digits, by which the publisher routes keys. It
// computes both halves independently, which is faster.
func keyHash(key uint64) uint32 {
	const digits = "0123456789abcdef"
	var high, low uint32
	for shift := 28; shift >= 0; shift -= 4 {
		high = 31*high + uint32(digits[key>>(shift+32)&0xf])
		low = 31*low + uint32(digits[key>>shift&0xf])
	}
	const shift8 = 31 * 31 * 31 * 31 * 31 * 31 * 31 * 31 & 0xffffffff
	return high*shift8 + low
}

// pack makes the messages of a partition from the series in this order. It returns false if the
// memory is used up: then out.Err says why.
func (p *Packing) pack(b *batch.Batch, out *Messages, partition int, order []int32) bool {
	p.growCounts(b)
	begun := false
	for _, i := range order {
		s := &b.Series[i]
		if s.Entries() == 0 {
			continue // possible in a 1.0 request; there is nothing to publish
		}
		if out.pending = len(p.series); !out.reserveMore() {
			return false
		}
		if begun {
			symbols, series := len(out.arena), len(p.series)
			p.add(b, out, s)
			last := &out.marks[len(out.marks)-1]
			if p.Limit == 0 || len(out.arena)-last.payload+len(p.series) <= p.Limit {
				out.addSeries(b, s)
				continue
			}
			out.arena, p.series = out.arena[:symbols], p.series[:series] // remove the series again: it begins the next message
			p.endMessage(out)
		}
		if !out.publishIfFull() {
			return false
		}
		p.beginMessage(out, partition)
		out.addSeries(b, s)
		p.add(b, out, s)
		begun = true
	}
	if begun {
		p.endMessage(out)
	}
	return out.Err == nil
}

// beginMessage starts a message whose key is the number of its partition. Its first symbol is the
// empty one.
func (p *Packing) beginMessage(out *Messages, partition int) {
	at := len(out.arena)
	out.arena = strconv.AppendInt(out.arena, int64(partition), 10)
	out.marks = append(out.marks, mark{key: at, payload: len(out.arena), partition: int32(partition)})
	out.arena = append(out.arena, 4<<3|batch.WireBytes, 0)
	p.base = p.count
}

// endMessage appends the series after the symbols.
func (p *Packing) endMessage(out *Messages) {
	out.arena = append(out.arena, p.series...)
	p.series, out.pending = p.series[:0], 0
}

// growCounts extends counts to the last symbol.
func (p *Packing) growCounts(b *batch.Batch) {
	if n := len(p.counts); n < len(b.Symbols) {
		p.counts = slices.Grow(p.counts, len(b.Symbols)-n)[:len(b.Symbols)]
		clear(p.counts[n:])
	}
}

// numberOf returns a symbol's number in the message. It appends the symbol if the message does not
// have it yet.
func (p *Packing) numberOf(b *batch.Batch, out *Messages, ref uint32) uint32 {
	if n := p.counts[ref]; n > p.base {
		return n - p.base
	}
	p.count++
	p.counts[ref] = p.count
	text := b.Symbols[ref]
	out.arena = binary.AppendUvarint(append(out.arena, 4<<3|batch.WireBytes), uint64(len(text)))
	out.arena = append(out.arena, text...)
	return p.count - p.base
}

// numberOfText is numberOf for a text. It returns 0 for the empty text, and sets out.Err if there is
// no memory for a new symbol.
func (p *Packing) numberOfText(b *batch.Batch, out *Messages, text string) uint32 {
	if text == "" || out.Err != nil {
		return 0
	}
	var ref uint32
	if ref, out.Err = b.Intern(text); out.Err != nil {
		return 0
	}
	p.growCounts(b)
	return p.numberOf(b, out, ref)
}

// add appends a series. It splits a series with samples and histograms, which 1.0 requests may
// contain, into two: a TimeSeries of 2.0 may have only one of both kinds.
func (p *Packing) add(b *batch.Batch, out *Messages, s *batch.Series) {
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
func (p *Packing) addOne(b *batch.Batch, out *Messages, s *batch.Series) {
	dst, at := batch.OpenField(p.series, 5)
	dst = p.addRefs(dst, b, out, s)
	for i := range batch.Slice(b.Samples, s.Samples) {
		v := &batch.Slice(b.Samples, s.Samples)[i]
		dst = batch.AppendSample(dst, v, v.Start)
	}
	for i := range batch.Slice(b.Histograms, s.Histograms) {
		h := &batch.Slice(b.Histograms, s.Histograms)[i]
		dst = b.AppendHistogram(dst, 3, h, h.Start)
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
		dst = p.addMetadata(dst, b, out, s.Metadata)
	}
	p.series = batch.CloseField(dst, at)
}

// addRefs appends the labels of a series.
func (p *Packing) addRefs(dst []byte, b *batch.Batch, out *Messages, s *batch.Series) []byte {
	refs := batch.Slice(b.Refs, s.Refs)
	if len(refs) == 0 {
		return p.addLabels(dst, b, out, batch.Slice(b.Labels, s.Labels))
	}
	dst, from := batch.OpenField(slices.Grow(dst, 2+binary.MaxVarintLen32*len(refs)), 1)
	buf, at := dst[:cap(dst)], from
	counts, base := p.counts, p.base
	for _, ref := range refs {
		n := counts[ref]
		if n <= base {
			n = base + p.numberOf(b, out, ref)
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

// addLabels appends labels that are texts.
func (p *Packing) addLabels(dst []byte, b *batch.Batch, out *Messages, labels []batch.Label) []byte {
	if len(labels) == 0 {
		return dst
	}
	dst, at := batch.OpenField(dst, 1)
	for i := range labels {
		dst = binary.AppendUvarint(dst, uint64(p.numberOfText(b, out, labels[i].Name)))
		dst = binary.AppendUvarint(dst, uint64(p.numberOfText(b, out, labels[i].Value)))
	}
	return batch.CloseField(dst, at)
}

// addMetadata appends the metadata of a series' family.
func (p *Packing) addMetadata(dst []byte, b *batch.Batch, out *Messages, m *batch.Metadata) []byte {
	help, unit := p.metadataText(b, out, m.Help, m.HelpRef), p.metadataText(b, out, m.Unit, m.UnitRef)
	dst, at := batch.OpenField(dst, 5)
	dst = batch.AppendVarint(dst, 1, uint64(m.Type))
	dst = batch.AppendVarint(dst, 3, uint64(help))
	dst = batch.AppendVarint(dst, 4, uint64(unit))
	return batch.CloseField(dst, at)
}

func (p *Packing) metadataText(b *batch.Batch, out *Messages, text string, ref uint32) uint32 {
	if ref == 0 || text == "" {
		return p.numberOfText(b, out, text)
	}
	return p.numberOf(b, out, ref)
}
