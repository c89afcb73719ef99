package messaging

import (
	"bytes"
	"maps"
)

// An empty payload outside batches does not arrive as it was at consumers of pulsar-client-go
// v0.21.0 (consumer_partition.go, MessageReceived): compressed it is not decompressed, and without
// compression and properties it is acknowledged and never shown. A property marks it.

// markEmpty adds PropertyEmpty to an unbatched message that needs it.
func (e *pending) markEmpty() {
	if e.msg.Payload == nil || len(e.msg.Payload) > 0 || e.msg.Properties[PropertyEmpty] == "true" {
		return
	}
	marked := make(map[string]string, len(e.msg.Properties)+1) // the record's own stay as they are
	maps.Copy(marked, e.msg.Properties)
	marked[PropertyEmpty] = "true"
	e.msg.Properties = marked
}

// unmarkEmpty makes d as it was published. A service that copies properties can put the mark on
// another payload, which stays.
func (d *Delivery) unmarkEmpty() {
	if d.Properties[PropertyEmpty] == "true" && d.ID.batchSize == 1 && compressedNothing(d.Payload) {
		delete(d.Properties, PropertyEmpty)
		d.Payload = []byte{}
	}
}

// compressedNothing reports whether b is what compression makes of nothing: nothing without
// compression, a token without literals (LZ4), or a frame without content (ZSTD, 9 bytes).
func compressedNothing(b []byte) bool {
	const frame = 9
	return len(b) == 0 || len(b) == 1 && b[0] == 0 ||
		len(b) <= frame && bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd})
}
