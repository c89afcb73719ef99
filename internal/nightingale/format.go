package nightingale

import (
	"time"
	"unsafe"

	"github.com/aviaryhq/aviary/pkg/messaging"

	"github.com/aviaryhq/aviary/internal/door"
)

// format turns a valid batch into messages. Formats are safe for concurrent use.
type format struct {
	name   string
	encode func(b *batch, out *outgoing)
	// size estimates the bytes of the messages. Past the estimate encode reserves more,
	// see outgoing.fits.
	size func(b *batch) int
	// samplesOnly: the format has no place for histograms and exemplars.
	samplesOnly bool
	// byPartition: the format groups series by partition, and each record names its own.
	byPartition bool
	// references: the format takes labels as references where a body has them, see form.
	references bool
	// symbols: its messages have symbols, so that references are of use for any body.
	symbols bool
}

// formats lists what the configuration's format can name.
func formats() []format {
	return []format{
		{name: "json", encode: encodeJSON, size: jsonSize},
		{name: "json-kafka-adapter", encode: encodeAdapter, size: adapterSize, samplesOnly: true},
		{name: "protobuf", encode: encodeProtobuf, size: protobufSize, references: true},
		{name: packedFormat, encode: encodePacked, size: packedSize, byPartition: true, references: true},
		{name: packedV2Format, encode: encodePackedV2, size: packedV2Size, byPartition: true, references: true, symbols: true},
	}
}

func formatNames() []string {
	var names []string
	for _, f := range formats() {
		names = append(names, f.name)
	}
	return names
}

func findFormat(name string) format {
	for _, f := range formats() {
		if f.name == name {
			return f
		}
	}
	panic("nightingale: unknown format " + name) // Config.Validate has checked it
}

// outgoing is the messages of one request. Keys and payloads stand in one
// allocation, the arena. All of it is used again only once nothing reads it any more:
// a publisher may read a payload long after the request has given up on it.
type outgoing struct {
	arena   []byte
	cuts    []cutMark
	records []messaging.Record
	bytes   int         // of all arenas that are finished
	apart   int         // of a message, not in the arena yet
	err     error       // why encoding stopped
	parts   []addressed // of the records, with topics by template
	packing packing     // what the packed format needs

	properties map[string]string // of every message; nobody changes it

	held     *door.Hold // takes what is needed beyond reserved from the bytes in flight; nil for no bound
	reserved int        // of held, for the messages
}

// messageBytes is what a message takes in memory besides its key and payload.
const messageBytes = int(unsafe.Sizeof(messaging.Record{}) + unsafe.Sizeof(cutMark{}))

// size is what the messages take in memory.
func (o *outgoing) size() int {
	size := o.bytes + o.apart + (len(o.records)+len(o.cuts))*messageBytes
	if len(o.cuts) > 0 { // else the arena is among bytes, or empty
		size += len(o.arena)
	}
	return size
}

// reserveStep is what is reserved at once beyond the estimate.
const reserveStep = 64 << 10

// fits reports whether there is room for what was encoded so far. Formats ask before
// each message, and for each series of a message: their estimates may be far too low,
// as with strings that are escaped.
func (o *outgoing) fits() bool {
	if o.held == nil || o.err != nil {
		return o.err == nil
	}
	if missing := o.size() - o.reserved; missing > 0 {
		if o.err = o.held.Grow(int64(missing) + reserveStep); o.err != nil {
			return false
		}
		o.reserved += missing + reserveStep
	}
	return true
}

// cutMark is where a message begins: its key, then its payload up to the next one.
type cutMark struct {
	key, payload, partition int
	latest                  int64 // timestamp in it
}

// room makes the arena of the messages that are encoded next, about n bytes.
func (o *outgoing) room(n int) {
	if len(o.arena) > 0 || cap(o.arena) < n { // records point into what is written
		o.arena = make([]byte, 0, n)
	}
}

// begin starts a message with the series' key and its latest timestamp. It reports false when there is no
// room: then encoding stops, and err says why.
func (o *outgoing) begin(key uint64, latest int64) bool {
	if !o.fits() {
		return false
	}
	at := len(o.arena)
	o.arena = appendKey(o.arena, key)
	o.cuts = append(o.cuts, cutMark{key: at, payload: len(o.arena), latest: latest})
	return true
}

// finish makes records of the messages. The arena does not move from here on; more
// messages need a new one.
func (o *outgoing) finish() {
	for i, c := range o.cuts {
		end := len(o.arena)
		if i+1 < len(o.cuts) {
			end = o.cuts[i+1].key
		}
		o.records = append(o.records, messaging.Record{
			Key:     unsafe.String(&o.arena[c.key], c.payload-c.key), //nolint:gosec // the arena is not written while it is read
			Payload: o.arena[c.payload:end:end], Partition: c.partition, Properties: o.properties, EventTime: eventTime(c.latest),
		})
	}
	o.bytes += len(o.arena)
	o.cuts = o.cuts[:0]
	o.fits()
}

// eventTime is a message's, which has none before 1970.
func eventTime(timestamp int64) time.Time {
	if timestamp <= 0 {
		return time.Time{}
	}
	return time.UnixMilli(timestamp)
}

// reset makes room for another request. Nothing may read the records any more.
func (o *outgoing) reset() {
	clear(o.records)
	o.arena, o.cuts, o.records, o.bytes, o.apart = o.arena[:0], o.cuts[:0], o.records[:0], 0, 0
	o.held, o.reserved, o.err, o.properties = nil, 0, nil, nil
}

// appendKey writes a series' key: 16 hexadecimal digits.
func appendKey(dst []byte, key uint64) []byte {
	const digits = "0123456789abcdef"
	for shift := 60; shift >= 0; shift -= 4 {
		dst = append(dst, digits[key>>shift&0xf])
	}
	return dst
}
