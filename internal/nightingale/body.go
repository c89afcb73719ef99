package nightingale

import (
	"github.com/klauspost/compress/snappy"

	"github.com/aviaryhq/aviary/internal/door"
)

// keepBuffer is the largest buffer that is kept for another request, keepBody that of a
// body as it is sent: 10,000 series have about half of it.
const (
	keepBuffer = 4 << 20
	keepBody   = 1 << 20
)

// body bounds bodies as they are sent.
func (l Limits) body() door.BodyLimits {
	return door.BodyLimits{Bytes: int64(l.CompressedBytes), Reason: "compressed_bytes", Timeout: l.ReadTimeout}
}

// decompress decodes a snappy block into dst. The size that it claims is checked
// before any memory is given to it. The decoder takes S2's repeated copies as well,
// which no snappy body has: none is read differently for that, and a scan for them
// would cost more than half of the decoding again.
func decompress(dst, src []byte, size int) ([]byte, error) {
	if cap(dst) < size {
		dst = make([]byte, size)
	}
	out, err := snappy.Decode(dst[:size], src)
	if err != nil {
		return dst, door.Invalid("not_snappy", "the body is not in snappy's block format: %v", err)
	}
	return out, nil
}

func decodedLen(src []byte, l Limits) (int, error) {
	if len(src) == 0 {
		return 0, door.Invalid("empty_body", "the body is empty")
	}
	size, err := snappy.DecodedLen(src)
	if err != nil {
		return 0, door.Invalid("not_snappy", "the body is not in snappy's block format: %v", err)
	}
	if int64(size) > int64(l.DecodedBytes) {
		return 0, door.TooLarge("decoded_bytes", "the body decodes to %d bytes, at most %d are allowed", size, int64(l.DecodedBytes))
	}
	return size, nil
}
