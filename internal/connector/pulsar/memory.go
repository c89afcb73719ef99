package pulsar

// Memory is what the source may hold besides the messages that the route has taken: those that were
// received ahead, with the client's overhead of each.
func (c SourceConfig) Memory(int, int64) int64 {
	const each = 512
	return int64(c.PrefetchBytes) + each*int64(c.PrefetchMessages)
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: the batches that
// contain them.
func (c SinkConfig) Memory(_ int, inFlight int64) int64 {
	return min(c.Profile.MaxPendingBytes, inFlight)
}
