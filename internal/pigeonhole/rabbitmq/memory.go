package rabbitmq

// sizeAhead is what a message that was delivered ahead is taken to need: how many there
// are is bounded, how large they are only the sender knows.
const sizeAhead = 4 << 10

// Memory is what the source may hold beside what the route has taken: what its channels
// were delivered ahead.
func (c SourceConfig) Memory() int64 {
	channels := len(c.Queues)
	if c.Mode == modeParallel {
		channels *= c.Parallel
	}
	return int64(channels) * int64(c.Prefetch) * sizeAhead
}

// Memory is what the sink may hold of inFlight bytes that the route has given it: its
// window once more, as under an alarm of the broker.
func (c SinkConfig) Memory(inFlight int64) int64 { return min(int64(c.WindowBytes), inFlight) }
