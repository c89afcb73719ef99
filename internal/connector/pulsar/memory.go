package pulsar

// Memory is what the source may hold beside what the route has taken: what was received
// ahead, with the client's own part of each message.
func (c SourceConfig) Memory() int64 {
	const each = 512
	return int64(c.PrefetchBytes) + each*int64(c.PrefetchMessages)
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: the
// batches that are made of them.
func (c SinkConfig) Memory(inFlight int64) int64 { return min(c.Profile.MaxPendingBytes, inFlight) }
