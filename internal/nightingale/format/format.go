// Package format encodes the series of a batch into messages. To add a format, add a file with an
// encode function and a line in [All]. It may import batch, but not remotewrite, relabel or publish.
package format

import (
	"time"
	"unsafe"

	"github.com/aviaryhq/aviary/internal/httpserver/admission"
	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Format encodes a valid batch into messages. Formats are safe for concurrent use.
type Format struct {
	name   string
	Encode func(b *batch.Batch, p *Packing, out *Messages)
	// Size estimates the size of the messages in bytes. If they become larger, Encode reserves more
	// memory, see Messages.reserveMore.
	Size func(b *batch.Batch, p *Packing) int
	// SamplesOnly says that the format cannot contain histograms and exemplars.
	SamplesOnly bool
	// ByPartition says that a message holds many series of one partition, which its record names,
	// and that the format reads labels as references, see batch.Batch.References.
	ByPartition bool
}

// All lists the formats that the configuration key format can name.
func All() []Format {
	return []Format{
		{name: "json", Encode: EncodeJSON, Size: jsonSize},
		{name: "json-kafka-adapter", Encode: encodeAdapter, Size: adapterSize, SamplesOnly: true},
		{name: "protobuf", Encode: encodeProtobuf, Size: protobufSize},
		{name: "packed", Encode: encodePacked, Size: packedSize, ByPartition: true},
	}
}

// Names lists the names of all formats.
func Names() []string {
	var names []string
	for _, f := range All() {
		names = append(names, f.name)
	}
	return names
}

// Find returns the format of a valid name.
func Find(name string) Format {
	for _, f := range All() {
		if f.name == name {
			return f
		}
	}
	panic("nightingale: unknown format " + name) // Config.Validate has checked it
}

// Messages holds messages of one request: all of them, or a piece. A request can become much larger
// as messages, because each repeats its series' labels. So PieceBytes bounds the messages that
// exist at one time: when they have this size, Publish is called, and then encoding continues.
//
// Keys and payloads are in one allocation, the arena. The memory is reused only when nothing reads
// it any more: a publisher may read a payload long after the request has timed out.
type Messages struct {
	arena   []byte
	marks   []mark // of all messages; the first ones already have records
	Records []messaging.Record
	Bytes   int   // size of all arenas that records use
	Total   int   // the same of all pieces
	pending int   // bytes of a message that are not in the arena yet
	Err     error // why encoding stopped

	Properties map[string]string // of every message; read only

	// Publish publishes the records and calls NextPiece. If it returns an error, encoding stops with
	// that error. nil: all messages are one piece.
	Publish func() error

	held     *admission.Hold // reserves further memory from the bytes in flight; nil: no bound
	reserved int             // bytes of held that are reserved for the messages
}

// PieceBytes is the size from which messages are published before further ones are encoded. Most
// requests are one piece: 10,000 samples of 300 bytes take less.
const PieceBytes = 8 << 20

// Reserve reserves the expected memory of count messages with together size bytes.
func (o *Messages) Reserve(held *admission.Hold, size, count int) error {
	o.held, o.reserved = held, min(size+count*MessageBytes, PieceBytes)
	return held.Grow(int64(o.reserved))
}

// NextPiece prepares the memory for the next piece. free says that nothing reads the records any
// more.
func (o *Messages) NextPiece(free bool) {
	if !free {
		o.arena, o.Records = nil, nil
	}
	clear(o.Records)
	o.arena, o.marks, o.Records, o.Bytes = o.arena[:0], o.marks[:0], o.Records[:0], 0
}

// Counts returns the number of samples, histograms and exemplars in the record with this index.
func (o *Messages) Counts(record int) batch.Counts {
	c := o.marks[record].contents
	return batch.Counts{Samples: int(c.samples), Histograms: int(c.histograms), Exemplars: int(c.exemplars)}
}

// Capacity returns the memory that is kept for reuse, in bytes.
func (o *Messages) Capacity() int { return cap(o.arena) + cap(o.Records)*MessageBytes }

// MessageBytes is the memory of a message besides its key and payload.
const MessageBytes = int(unsafe.Sizeof(messaging.Record{}) + unsafe.Sizeof(mark{}))

// Size returns the memory of the messages in bytes.
func (o *Messages) Size() int {
	size := o.Bytes + o.pending + len(o.marks)*MessageBytes
	if len(o.marks) > len(o.Records) { // otherwise Bytes includes the arena, or the arena is empty
		size += len(o.arena)
	}
	return size
}

// reserveStep is how much additional memory is reserved at once beyond the estimate.
const reserveStep = 64 << 10

// reserveMore reserves memory for the encoded messages beyond the estimate. It returns false if
// there is none. Formats call it before each message, and for each series of a message: their estimates
// may be far too low, for instance for strings with many escapes.
func (o *Messages) reserveMore() bool {
	if o.held == nil || o.Err != nil {
		return o.Err == nil
	}
	if missing := o.Size() - o.reserved; missing > 0 {
		if o.Err = o.held.Grow(int64(missing) + reserveStep); o.Err != nil {
			return false
		}
		o.reserved += missing + reserveStep
	}
	return true
}

// mark is the position of a message in the arena: its key, and its payload up to the next message.
type mark struct {
	key, payload int
	latest       int64 // latest timestamp in the message
	partition    int32
	contents
}

// contents is the number of elements of each kind in a message.
type contents struct{ samples, histograms, exemplars int32 }

func (c *contents) add(s *batch.Series) {
	c.samples += int32(s.Samples.Len())
	c.histograms += int32(s.Histograms.Len())
	c.exemplars += int32(s.Exemplars.Len())
}

// addSeries notes that the last message contains a series.
func (o *Messages) addSeries(b *batch.Batch, s *batch.Series) {
	last := &o.marks[len(o.marks)-1]
	last.add(s)
	last.latest = max(last.latest, b.Latest(s))
}

// newArena provides an arena of about n bytes, or of a piece, for the next messages.
func (o *Messages) newArena(n int) {
	n = min(n, PieceBytes+PieceBytes/8)
	if len(o.arena) > 0 || cap(o.arena) < n { // records point into a used arena, so it must not be overwritten
		o.arena = make([]byte, 0, n)
	}
}

// publishIfFull publishes the messages if they are a piece. It returns false if no message may
// follow: then encoding stops, and Err says why.
func (o *Messages) publishIfFull() bool {
	if o.Publish != nil && o.Size() >= PieceBytes && o.Err == nil {
		if o.makeRecords(); o.Err == nil {
			o.Err = o.Publish()
		}
	}
	return o.reserveMore()
}

// begin starts a message with the series' key, its latest timestamp and what it contains. It
// returns false if encoding must stop, as publishIfFull does.
func (o *Messages) begin(key uint64, latest int64, c contents) bool {
	if !o.publishIfFull() {
		return false
	}
	at := len(o.arena)
	o.arena = batch.AppendKey(o.arena, key)
	o.marks = append(o.marks, mark{key: at, payload: len(o.arena), latest: latest, contents: c})
	return true
}

// seriesHead is the common beginning of all messages of a series.
type seriesHead struct {
	out        *Messages
	encode     func(dst []byte, labels []batch.Label, m *batch.Metadata) []byte
	from, size int // of the beginning in the arena
}

// begin starts a message as Messages.begin does, and appends the beginning. It encodes it for the
// first message of a piece, and copies it for the others.
func (h *seriesHead) begin(b *batch.Batch, s *batch.Series, timestamp int64, c contents) bool {
	out := h.out
	if !out.begin(s.Key, timestamp, c) {
		return false
	}
	at := len(out.arena)
	if h.size > 0 && at >= h.from+h.size { // otherwise the arena is another one
		out.arena = append(out.arena, out.arena[h.from:h.from+h.size]...)
		return true
	}
	out.arena = h.encode(out.arena, batch.Slice(b.Labels, s.Labels), s.Metadata)
	h.from, h.size = at, len(out.arena)-at
	return true
}

// makeRecords makes records of the messages. The records point into the arena, so further messages
// need a new one.
func (o *Messages) makeRecords() {
	for i := len(o.Records); i < len(o.marks); i++ {
		m, end := &o.marks[i], len(o.arena)
		if i+1 < len(o.marks) {
			end = o.marks[i+1].key
		}
		o.Records = append(o.Records, messaging.Record{
			Key:     unsafe.String(&o.arena[m.key], m.payload-m.key), //nolint:gosec // nothing writes to the arena while records use it
			Payload: o.arena[m.payload:end:end], Partition: int(m.partition), Properties: o.Properties, EventTime: eventTime(m.latest),
		})
	}
	o.Bytes += len(o.arena)
	o.Total += len(o.arena)
	o.reserveMore()
}

// eventTime returns the event time of a message. Messages from before 1970 have none.
func eventTime(timestamp int64) time.Time {
	if timestamp <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(timestamp)
}

// Reset prepares the memory for another request. Nothing may read the records any more.
func (o *Messages) Reset() {
	o.NextPiece(true)
	o.Total, o.pending, o.Err, o.Properties, o.Publish, o.held, o.reserved = 0, 0, nil, nil, nil, nil, 0
}
