package messaging

import "bytes"

// compressedNothing reports whether b is what compression makes of nothing: nothing without
// compression, a token without literals (LZ4), or a frame without content (ZSTD, 9 bytes).
func compressedNothing(b []byte) bool {
	const frame = 9
	return len(b) == 0 || len(b) == 1 && b[0] == 0 ||
		len(b) <= frame && bytes.HasPrefix(b, []byte{0x28, 0xb5, 0x2f, 0xfd})
}
