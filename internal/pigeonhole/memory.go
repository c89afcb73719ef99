package pigeonhole

// Estimates of what a process of Pigeonhole holds, in bytes.
const (
	// typicalMemory is what a process needs while its sinks keep up. With its program code it is
	// about 240 MiB resident.
	typicalMemory = 220 << 20
	// memoryBase is what a process without routes holds.
	memoryBase = 32 << 20
	// memoryPerRoute is for connections, their buffers and the metadata of topics.
	memoryPerRoute = 4 << 20
	// memoryPerMessage is what a message in flight needs besides its bytes, here and in the sink's
	// client: 2.5 KiB from Kafka to Pulsar.
	memoryPerMessage = 5 << 9
)

// memory returns how many bytes a route with these bounds may hold: the messages in flight, and
// what the source, the sink and the dead-letter sink buffer.
func (c RouteConfig) memory(bounds InFlight) int64 {
	inFlight := int64(bounds.Bytes)
	held := memoryPerRoute + inFlight + memoryPerMessage*int64(bounds.Messages)
	if _, source := c.Source.section(); source != nil {
		held += source.Memory(bounds.Messages, inFlight)
	}
	if _, sink := c.sink(); sink != nil {
		held += sink.Memory(bounds.Messages, inFlight)
	}
	if _, deadLetters := c.deadLetterSink(); deadLetters != nil {
		held += memoryPerRoute + deadLetters.Memory(bounds.Messages, inFlight)
	}
	return held
}

// memoryNeed returns how many bytes the process needs for its routes: what they may hold, and a
// quarter more for the garbage collector.
func memoryNeed(routes []*route) int64 {
	held := int64(memoryBase)
	for _, r := range routes {
		held += r.memory.Load()
	}
	return held + held/4
}
