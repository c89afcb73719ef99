package format

import (
	"slices"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

// Packing holds the settings of the packed format, which may differ between topics, and its working
// memory.
type Packing struct {
	Partitions int // number of partitions of the topic; 0 means 1
	Limit      int // maximum size of a message in bytes; 0: no limit

	scratch   []byte
	partition []int32 // of each series
	next      []int32 // position in order for the next series of each partition
	order     []int32 // indexes of the series, grouped by partition
	symbols   symbolPacker
}

// The packed format: one message holds many series of one partition as a standard
// io.prometheus.write.v2.Request with a symbol table of its own, so that software for remote write
// 2.0 can read the topic's messages (without snappy, because the publisher compresses). Series of
// one partition keep the order of the request, within a message and across messages. A message has
// at most message_bytes, or a single series that is larger.
//
// A series is on the partition to which its key in the other formats would route: Java's String
// hash of the key's 16 hexadecimal digits, modulo the number of partitions. Consumers may rely only
// on each series being on one partition. The message's key is the decimal number of the partition,
// so that a Key_Shared subscription also keeps each series in order.
//
// The format keeps everything of remote write: type, unit and help of a series' family, start
// timestamps, exemplars and native histograms. It adds the metadata of 1.0 requests to the series
// of their families, as json does: a 2.0 request has no other place for it.
//
// A message contains each text once, or seldom twice, before the series, whose labels are numbers of
// texts. If the batch has references, encoding a label takes two array accesses.
func encodePacked(b *batch.Batch, p *Packing, out *Messages) {
	partitions := max(p.Partitions, 1)
	p.sort(b, partitions)
	out.growArena(p.symbols.estimate(b, partitions) + 16*partitions)
	p.symbols.limit = p.Limit
	from := int32(0)
	for partition, to := range p.next {
		if from < to && !p.symbols.pack(b, out, partition, p.order[from:to]) {
			return
		}
		from = to
	}
	out.finish()
}

// Reset prepares the memory for another request.
func (p *Packing) Reset() { p.symbols.reset() }

// Size returns the allocated memory in bytes.
func (p *Packing) Size() int { return p.symbols.size() }

// sort fills order, and sets next to the end of each partition's series in order. With more than
// one partition it computes the keys that Validate has left out.
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

// symbolFieldSize is how many bytes a symbol usually takes in a message besides its text.
const symbolFieldSize = 2

// packedSize estimates the size as if no two series shared a text: usually too high.
func packedSize(b *batch.Batch, p *Packing) int {
	series, labels := packedParts(b)
	p.symbols.ofSeries, p.symbols.ofLabels = series/max(len(b.Series), 1)+1, labels/max(len(b.Series), 1)+1
	return series + labels
}

// estimate returns about the size of the messages of the batch's series. If a topic gets only some
// of the series that packedSize has seen, estimate assumes that they have average size.
func (p *symbolPacker) estimate(b *batch.Batch, partitions int) int {
	texts := b.SymbolBytes + symbolFieldSize*len(b.Symbols)
	return len(b.Series)*p.ofSeries + min(len(b.Series)*p.ofLabels, texts*partitions)
}

// packedParts estimates the size of the series without their texts, and the size of the texts of
// all of their labels.
func packedParts(b *batch.Batch) (series, labels int) {
	for i := range b.Series {
		s := &b.Series[i]
		size := 12 + 32*s.Samples.Len() + b.PartsSize(s)
		if s.Refs.Len() > 0 {
			size += 3 * s.Refs.Len()
			labels += int(s.LabelBytes) + symbolFieldSize*s.Refs.Len()
		} else {
			n := s.Labels.Len()
			size += 6 * n
			labels += batch.LabelsSize(batch.Slice(b.Labels, s.Labels))
		}
		if m := s.Metadata; m != nil {
			size += 16
			labels += len(m.Help) + len(m.Unit)
		}
		series += size
	}
	return series, labels
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
