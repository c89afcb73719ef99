// Package message is what Pigeonhole moves, neutral of the systems that it moves it
// between, and how each system's form is mapped to it and back without loss.
package message

import "time"

// Message is one message on its way from a source to a sink. A source makes it and
// does not touch it afterwards; a route may change it before it is sent; a sink only
// reads it.
type Message struct {
	// Key is nil for a message without one.
	Key []byte
	// OrderingKey is Pulsar's: it takes the place of Key where order is kept. Empty for
	// none.
	OrderingKey string
	// Value is nil for a null value (a tombstone), and empty but not nil for an
	// empty one.
	Value []byte
	// Headers in their order; names may repeat.
	Headers []Header
	// Time is when the producer says it was made, to the millisecond; zero when it
	// does not say.
	Time time.Time
	// AMQP is what RabbitMQ knows of a message besides; nil unless it came from
	// there, directly or by way of another system.
	AMQP *AMQP
	// Origin is where the message was taken from first. Hops are the places that routes
	// took it from before, the first one first (see [PlaceName]; those of before named
	// the process); Hop is the place that comes behind them in what is sent, empty for
	// none.
	Origin Origin
	Hops   []string
	Hop    string
	// OmitOrigin leaves the origin, and the place of the last hop, out of what is sent.
	OmitOrigin bool
	// From is where this Pigeonhole took it from. It is not sent on.
	From From
}

// Header is a header of Kafka or AMQP, or a property of Pulsar.
type Header struct {
	Name string
	// Value is nil for a null value. Of a header with Typed it is the value as text.
	Value []byte
	// Typed is the value of an AMQP header that is not a string; else nil. It is
	// one of bool, int8, uint8, int16, int32, int64, float32, float64, []byte,
	// Decimal, time.Time, []any and Table, and Null for AMQP's void.
	Typed any
}

// Null is AMQP's void value.
type Null struct{}

// Decimal is an AMQP decimal: Value / 10^Scale.
type Decimal struct {
	Scale uint8
	Value int32
}

// Table is an AMQP table within a header. Its values are those of Header.Typed, or
// strings.
type Table map[string]any

// AMQP are the basic properties of an AMQP 0-9-1 message, except for the headers and
// the timestamp, and what it was published with.
type AMQP struct {
	Exchange, RoutingKey string

	ContentType, ContentEncoding string
	DeliveryMode, Priority       uint8
	CorrelationID, ReplyTo       string
	Expiration, MessageID        string
	Type, UserID, AppID          string
}

// Origin is where a message was first taken from.
type Origin struct {
	System    string // kafka, rabbitmq or pulsar
	Cluster   string // its name in the configuration
	Topic     string // or queue
	Partition int32  // -1 for none
	Offset    int64  // of Kafka, or of a stream of RabbitMQ; -1 for none
	ID        string // Kafka's topic id, Pulsar's message id, or AMQP's message-id; may be empty
}

// IsZero reports whether the origin says nothing.
func (o Origin) IsZero() bool { return o == Origin{} }

// From is a message's place at the source.
type From struct {
	System    string // kafka, rabbitmq or pulsar
	Cluster   string // its name in the configuration
	Topic     string // or queue
	TopicID   string // tells the topic from others of its name, before and elsewhere; empty where the broker gives none
	Partition int32  // -1 for none
	Offset    int64  // -1 for none
	// Stored is when the source's broker says that it stored the message; zero when
	// it does not say.
	Stored time.Time
	// Received is when it came to this process.
	Received time.Time
}

// overhead is what a message costs in memory beyond its bytes, roughly.
const overhead = 256

// Size is the number of bytes that the message is charged for while it is here.
func (m *Message) Size() int64 {
	n := overhead + len(m.Key) + len(m.OrderingKey) + len(m.Value)
	for i := range m.Headers {
		n += 48 + len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	return int64(n)
}
