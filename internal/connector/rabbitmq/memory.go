package rabbitmq

import (
	"reflect"

	amqp "github.com/rabbitmq/amqp091-go"
)

const (
	// connectionMemory is a connection's buffers: those of frames and of the socket.
	connectionMemory = 2*frameMax + readBuffer + 2*maxReusedBuffer
	// tableMemory is a message's table of headers, with what the library keeps of its delivery or
	// confirm.
	tableMemory = 1 << 10
)

// Memory is what the source may hold besides the messages that the route has taken: the messages
// that the broker has delivered ahead to its channels.
func (c SourceConfig) Memory(int, int64) int64 {
	return connectionMemory + int64(c.PrefetchBytes) + tableMemory*int64(c.channels())*int64(c.Prefetch)
}

// Memory is what the sink may hold of inFlight bytes in messages that the route has given it: a
// second copy of its window, as under an alarm of the broker, what it keeps of each message (in a
// ring of up to twice as many), and room for returns, which is allocated at the start.
func (c SinkConfig) Memory(messages int, inFlight int64) int64 {
	perMessage := tableMemory + 2*int64(reflect.TypeFor[pendingMessage]().Size())
	slots := int64(c.Channels) * int64(c.Window)
	return connectionMemory + min(int64(c.WindowBytes), inFlight) + perMessage*min(slots, int64(messages)) +
		int64(reflect.TypeFor[amqp.Return]().Size())*slots
}
