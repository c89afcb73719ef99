package rabbitmq

import (
	"reflect"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// connectionMemory is a connection's buffers: those of frames and of the socket.
	connectionMemory = 2*frameMax + readBuffer + 2*keptBuffer
	// tableMemory is a message's table of headers, with what the library keeps of its delivery or confirm.
	tableMemory = 1 << 10
)

// Memory is what the source may hold beside what the route has taken: what its channels
// were delivered ahead.
func (c SourceConfig) Memory() int64 {
	return connectionMemory + int64(c.PrefetchBytes) + tableMemory*int64(c.channels())*int64(c.Prefetch)
}

// Memory is what the sink may hold of inFlight bytes in messages that the route has given it:
// its window once more, as under an alarm of the broker, what the library keeps of each
// message, and the places of the window, which are there from the beginning.
func (c SinkConfig) Memory(inFlight int64, messages int) int64 {
	place := int64(reflect.TypeFor[sent]().Size() + reflect.TypeFor[amqp.Return]().Size() + reflect.TypeFor[chan struct{}]().Size())
	places := int64(c.Channels) * int64(c.Window)
	return connectionMemory + min(int64(c.WindowBytes), inFlight) + tableMemory*min(places, int64(messages)) + place*places
}
