package pigeonhole

// What a process of Pigeonhole holds, roughly.
const (
	// usualMemory is what a process needs whose sinks keep up; with its program code that is
	// some 240 MiB resident.
	usualMemory = 220 << 20
	// memoryBase is for what is there without routes.
	memoryBase = 32 << 20
	// memoryOfRoute is for connections, their buffers and what is known of topics.
	memoryOfRoute = 4 << 20
	// memoryOfMessage is what a message in flight needs beside its bytes, here and in the
	// client that sends it: 2.5 KiB from Kafka to Pulsar.
	memoryOfMessage = 5 << 9
)

// memory is what a route with these bounds may hold: what is in flight, and what its
// source, its sink and its dead letters' sink buffer.
func (c RouteConfig) memory(bounds InFlight) int64 {
	inFlight := int64(bounds.Bytes)
	held := memoryOfRoute + inFlight + memoryOfMessage*int64(bounds.Messages) + c.Source.memory(inFlight) + c.Sink.memory(bounds)
	if letters := c.letters(); letters != nil && c.deadLetters() {
		held += memoryOfRoute + letters.memory(bounds)
	}
	return held
}

func (c SourceConfig) memory(inFlight int64) int64 {
	switch {
	case c.Kafka != nil:
		return c.Kafka.Memory(inFlight)
	case c.RabbitMQ != nil:
		return c.RabbitMQ.Memory()
	default:
		return c.Pulsar.Memory()
	}
}

func (c SinkConfig) memory(bounds InFlight) int64 {
	inFlight := int64(bounds.Bytes)
	switch {
	case c.Kafka != nil:
		return c.Kafka.Memory(inFlight)
	case c.RabbitMQ != nil:
		return c.RabbitMQ.Memory(inFlight, bounds.Messages)
	default:
		return c.Pulsar.Memory(inFlight)
	}
}

// memoryNeed is what the process needs for its routes, given what each may hold: a
// quarter more, so that the garbage collector has room when all of them are full.
func memoryNeed(routes []*route) int64 {
	held := int64(memoryBase)
	for _, r := range routes {
		held += r.memory.Load()
	}
	return held + held/4
}
