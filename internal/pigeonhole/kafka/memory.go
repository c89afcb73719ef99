package kafka

import "github.com/aviaryhq/aviary/internal/config"

// Memory is what the source may hold beside what the route has taken: its buffers, and
// the answers that are on their way and being unpacked.
func (c SourceConfig) Memory() int64 {
	return int64(c.BufferBytes + 2*min(2*c.FetchBytes, 64*config.MiB))
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: the
// batches that are being compressed and sent.
func (c SinkConfig) Memory(inFlight int64) int64 {
	const batches = 16 // partitions whose batch is being sent
	return min(batches*int64(c.MaxMessageBytes), inFlight)
}
