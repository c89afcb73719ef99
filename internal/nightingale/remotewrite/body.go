package remotewrite

import (
	"github.com/klauspost/compress/snappy"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// KeepBuffer is the maximum size of a buffer that is kept for another request. KeepBody is that of
// a compressed body: 10,000 series take about half of it.
const (
	KeepBuffer = 4 << 20
	KeepBody   = 1 << 20
)

// Decompress decodes a snappy block into dst. size is the size that DecodedLen has read from the
// block and checked. The decoder also accepts S2's repeated copies, which are not valid snappy.
// That does not change how it reads valid bodies, and a scan for them would take more than half of
// the time of decoding.
func Decompress(dst, src []byte, size int) ([]byte, error) {
	if cap(dst) < size {
		dst = make([]byte, size)
	}
	out, err := snappy.Decode(dst[:size], src)
	if err != nil {
		return dst, refusal.Invalid("not_snappy", "the body is not in snappy's block format: %v", err)
	}
	return out, nil
}

// DecodedLen returns the decoded size that a compressed body declares. It returns an error if this
// exceeds the limit.
func DecodedLen(src []byte, l Limits) (int, error) {
	if len(src) == 0 {
		return 0, refusal.Invalid("empty_body", "the body is empty")
	}
	size, err := snappy.DecodedLen(src)
	if err != nil {
		return 0, refusal.Invalid("not_snappy", "the body is not in snappy's block format: %v", err)
	}
	if int64(size) > int64(l.DecodedBytes) {
		return 0, refusal.TooLarge("decoded_bytes", "the body decodes to %d bytes, at most %d are allowed", size, int64(l.DecodedBytes))
	}
	return size, nil
}
