package kafka

import "github.com/aviaryhq/aviary/internal/config"

// leastAhead is what is fetched ahead however little the route may have in flight.
const leastAhead = 256 << 10

// ahead is how much may be fetched that the route has not taken yet, given the bytes that it
// may have in flight. Beyond a quarter of these it would only wait, and with many routes,
// which have small shares, take many times their memory.
func (c SourceConfig) ahead(inFlight int64) int64 {
	return min(int64(c.BufferBytes), max(inFlight/4, leastAhead))
}

// fetch is how much is asked for at once of a partition.
func (c SourceConfig) fetch(inFlight int64) config.Bytes {
	return min(c.FetchBytes, config.Bytes(max(c.ahead(inFlight)/2, int64(c.FetchMinBytes))))
}

// Memory is what the source may hold beside the inFlight bytes that the route has taken: its
// buffers, and the answers that are on their way and being unpacked.
func (c SourceConfig) Memory(inFlight int64) int64 {
	return c.ahead(inFlight) + int64(2*min(2*c.fetch(inFlight), 64*config.MiB))
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: the
// batches that are being compressed and sent.
func (c SinkConfig) Memory(inFlight int64) int64 {
	const batches = 16 // partitions whose batch is being sent
	return min(batches*int64(c.MaxMessageBytes), inFlight)
}
