package kafka

import "github.com/aviaryhq/aviary/internal/config"

// minBuffer is the smallest bufferSize, unless buffer_bytes is smaller.
const minBuffer = 256 << 10

// bufferSize is how many bytes may be fetched that the route has not taken yet, given the bytes that
// the route may have in flight. More than a quarter of these would only wait. With many routes, each
// with a small share, it would also take many times their memory.
func (c SourceConfig) bufferSize(inFlight int64) int64 {
	return min(int64(c.BufferBytes), max(inFlight/4, minBuffer))
}

// fetchSize is how many bytes one fetch asks for per partition.
func (c SourceConfig) fetchSize(inFlight int64) config.Bytes {
	return min(c.FetchBytes, config.Bytes(max(c.bufferSize(inFlight)/2, int64(c.FetchMinBytes))))
}

// Memory is what the source may hold besides the inFlight bytes that the route has taken: its
// buffers, and the fetch responses that are being received and decompressed.
func (c SourceConfig) Memory(_ int, inFlight int64) int64 {
	return c.bufferSize(inFlight) + int64(2*min(2*c.fetchSize(inFlight), 64*config.MiB))
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: the batches that
// are being compressed and sent.
func (c SinkConfig) Memory(_ int, inFlight int64) int64 {
	const batches = 16 // partitions whose batch is being sent
	return min(batches*int64(c.MaxMessageBytes), inFlight)
}
