package format

import (
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

const packedFormat = "packed"

// Packing holds the settings of the packed formats, which may differ between topics, and their
// working memory.
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
// prometheus.WriteRequest, so that software for remote write 1.0 can read the topic's messages
// (without snappy, because the publisher compresses). Series of one partition keep the order of the
// request, within a message and across messages. A message has at most message_bytes, or a single
// series that is larger.
//
// A series is on the partition to which its key in the other formats would route: Java's String
// hash of the key's 16 hexadecimal digits, modulo the number of partitions. Consumers may rely only
// on each series being on one partition. The message's key is the decimal number of the partition,
// so that a Key_Shared subscription also keeps each series in order.
//
// Metadata of a 1.0 request is published, too, on the partition of the family's name.
//
// The encoder copies the bytes of a series of a 1.0 request if they can be copied, see
// batch.Span.
func encodePacked(b *batch.Batch, p *Packing, out *Messages) {
	partitions := max(p.Partitions, 1)
	p.sort(b, partitions)
	size := 0
	for i := range b.Series {
		size += b.EncodedSize(&b.Series[i])
	}
	out.growArena(size + b.MetadataSize() + 16*(partitions+size/max(p.Limit, 1<<10)))
	from := int32(0)
	for partition, to := range p.next {
		begun := false
		for _, i := range p.order[from:to] {
			s := &b.Series[i]
			if !p.begin(out, begun, partition, b.EncodedSize(s)) {
				return
			}
			out.addSeries(b, s)
			begun = true
			if raw := b.RawField(s); len(raw) > 0 {
				out.arena = append(out.arena, raw...)
				continue
			}
			var at int
			out.arena, at = batch.OpenField(out.arena, 1)
			out.arena = b.AppendSeries(out.arena, s)
			out.arena = batch.CloseField(out.arena, at)
		}
		p.addMetadata(out, b, partition, partitions, begun)
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
			if b.Form.LateKeys {
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

// begin begins a message, unless the present one has room for size more bytes. Like
// Messages.publishIfFull it returns false if encoding must stop.
func (p *Packing) begin(o *Messages, begun bool, partition, size int) bool {
	if begun {
		have := len(o.arena) - o.cuts[len(o.cuts)-1].payload
		if p.Limit == 0 || have+size <= p.Limit {
			return o.fits()
		}
	}
	if !o.publishIfFull() {
		return false
	}
	o.beginPartition(partition)
	return true
}

// beginPartition begins a message whose key is the number of its partition.
func (o *Messages) beginPartition(partition int) {
	at := len(o.arena)
	o.arena = strconv.AppendInt(o.arena, int64(partition), 10)
	o.cuts = append(o.cuts, cutMark{key: at, payload: len(o.arena), partition: int32(partition)})
}

// addMetadata adds the metadata entries of a version 1 request whose families belong to the
// partition. It does not add metadata of version 2, which comes with every series and would be
// repeated in every message.
func (p *Packing) addMetadata(o *Messages, b *batch.Batch, partition, partitions int, begun bool) {
	if b.Body == nil {
		return
	}
	for i := range b.Metadata {
		m := &b.Metadata[i]
		if partitions > 1 && keyHash(xxhash.Sum64String(m.Family))%uint32(partitions) != uint32(partition) {
			continue
		}
		if !p.begin(o, begun, partition, m.EncodedSize()) {
			return
		}
		begun = true
		var at int
		o.arena, at = batch.OpenField(o.arena, 3)
		o.arena = batch.AppendVarint(o.arena, 1, uint64(batch.KindNumber(m.Kind)))
		o.arena = batch.AppendText(o.arena, 2, m.Family)
		o.arena = batch.AppendText(o.arena, 4, m.Help)
		o.arena = batch.AppendText(o.arena, 5, m.Unit)
		o.arena = batch.CloseField(o.arena, at)
	}
}

func packedSize(b *batch.Batch, _ *Packing) int { return protobufSize(b, nil) + b.MetadataSize() }

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
