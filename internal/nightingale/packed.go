package nightingale

import (
	"slices"
	"strconv"

	"github.com/cespare/xxhash/v2"
)

const packedFormat = "packed"

// packing is the packed format's settings and working memory.
type packing struct {
	partitions int // of the topic; 0 is taken for 1
	limit      int // bytes of a message; 0 for no limit

	scratch   []byte
	partition []int32 // of each series
	next      []int32 // of each partition: where its next series goes in order
	order     []int32 // series, those of one partition together
}

// The packed format: one message holds many series of one partition as a standard
// prometheus.WriteRequest, so that the topic's messages can be read by whatever
// reads remote write 1.0 (snappy apart: the publisher compresses). Series of one
// partition keep the order of the request, within a message and from one message to
// the next. A message has at most message_bytes, or a single series that is larger.
//
// A series' partition is that which the key of the other formats routes to: Java's
// String hash of its 16 hexadecimal digits, modulo the number of partitions. A
// consumer may rely on one series being on one partition, and on nothing more. The
// message's key is the partition's number in decimal, so that a Key_Shared
// subscription keeps each series in order too.
//
// Metadata of a 1.0 request is passed on, on the partition of the family's name.
//
// The bytes of a series of a 1.0 request are copied, not encoded anew, unless
// labels were sorted or changed.
func encodePacked(b *batch, out *outgoing) {
	p := &out.packing
	partitions := max(p.partitions, 1)
	p.sort(b, partitions)
	size := 0
	for i := range b.series {
		size += b.encodedSize(&b.series[i])
	}
	out.room(size + b.metadataSize() + 16*(partitions+size/max(p.limit, 1<<10)))
	from := int32(0)
	for partition, to := range p.next {
		begun := false
		for _, i := range p.order[from:to] {
			s := &b.series[i]
			if !out.beginPacked(begun, partition, b.encodedSize(s), b.latest(s)) {
				return
			}
			begun = true
			if raw := b.rawField(s); len(raw) > 0 {
				out.arena = append(out.arena, raw...)
				continue
			}
			var at int
			out.arena, at = openField(out.arena, 1)
			out.arena = b.appendSeries(out.arena, s)
			out.arena = closeField(out.arena, at)
		}
		out.packMetadata(b, partition, partitions, begun)
		from = to
	}
	out.finish()
}

// sort fills order, where next holds the end of each partition's part. Keys that are
// still to be made are made where there are partitions to choose from.
func (p *packing) sort(b *batch, partitions int) {
	p.next = append(p.next[:0], make([]int32, partitions)...)
	p.partition = slices.Grow(p.partition[:0], len(b.series))[:len(b.series)]
	p.order = slices.Grow(p.order[:0], len(b.series))[:len(b.series)]
	for i := range b.series {
		s := &b.series[i]
		at := int32(0)
		if partitions > 1 {
			if b.form.lateKeys {
				s.key, p.scratch = b.key(s, p.scratch)
			}
			at = int32(keyHash(s.key) % uint32(partitions))
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

// beginPacked begins a message unless there is one with room for size more bytes, whose
// latest timestamp is given. It reports false as begin does.
func (o *outgoing) beginPacked(begun bool, partition, size int, latest int64) bool {
	if !o.fits() {
		return false
	}
	if begun {
		last := &o.cuts[len(o.cuts)-1]
		if have := len(o.arena) - last.payload; o.packing.limit == 0 || have+size <= o.packing.limit {
			last.latest = max(last.latest, latest)
			return true
		}
	}
	at := len(o.arena)
	o.arena = strconv.AppendInt(o.arena, int64(partition), 10)
	o.cuts = append(o.cuts, cutMark{key: at, payload: len(o.arena), partition: partition, latest: latest})
	return true
}

// packMetadata adds the entries of a version 1 request whose families belong to the
// partition. Those of version 2 come with every series and would be repeated in
// every message.
func (o *outgoing) packMetadata(b *batch, partition, partitions int, begun bool) {
	if b.body == nil {
		return
	}
	for i := range b.metadata {
		m := &b.metadata[i]
		if partitions > 1 && keyHash(xxhash.Sum64String(m.family))%uint32(partitions) != uint32(partition) {
			continue
		}
		if !o.beginPacked(begun, partition, m.encodedSize(), 0) {
			return
		}
		begun = true
		var at int
		o.arena, at = openField(o.arena, 3)
		o.arena = appendVarint(o.arena, 1, uint64(kindNumber(m.kind)))
		o.arena = appendText(o.arena, 2, m.family)
		o.arena = appendText(o.arena, 4, m.help)
		o.arena = appendText(o.arena, 5, m.unit)
		o.arena = closeField(o.arena, at)
	}
}

func packedSize(b *batch) int { return protobufSize(b) + b.metadataSize() }

func (b *batch) metadataSize() (size int) {
	for i := range b.metadata {
		size += b.metadata[i].encodedSize()
	}
	return size
}

func (m *metadata) encodedSize() int { return 40 + len(m.family) + len(m.help) + len(m.unit) }

// kindNumber is kindName's inverse.
func kindNumber(kind string) int32 {
	switch kind {
	case "counter":
		return 1
	case "gauge":
		return 2
	case "histogram":
		return 3
	case "gaugehistogram":
		return 4
	case "summary":
		return 5
	case "info":
		return 6
	case "stateset":
		return 7
	default:
		return 0
	}
}

// keyHash is Java's String hash of the key's 16 digits, by which the publisher
// routes keys. The halves are independent, which is faster than one chain.
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
