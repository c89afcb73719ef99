package clientquirks

import "bytes"

// CompressedNothing reports whether b is what compression makes of an empty payload: nothing
// without compression, a token without literals (LZ4), or a frame without content (ZSTD, 9
// bytes).
//
// Outside batches a consumer does not decompress an empty payload, and without compression and
// properties it acknowledges the message and does not show it (consumer_partition.go,
// MessageReceived; internal/commands.go, ReadMessage). So publishers mark it with a property
// (publish/empty_payload.go), and deliveries undo the mark. When the client decompresses it, the
// property may go.
func CompressedNothing(b []byte) bool {
	const frame = 9
	return len(b) == 0 || len(b) == 1 && b[0] == 0 ||
		len(b) <= frame && bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd})
}
