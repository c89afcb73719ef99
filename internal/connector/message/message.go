// Package message defines Pigeonhole's message, which is independent of Kafka, Pulsar and RabbitMQ,
// and maps the messages of each system to it and back without loss. It imports no other package of
// this repository.
package message

import "time"

// Message is one message that a route moves from a source to a sink. Only the route may change it,
// before it is sent.
type Message struct {
	// Key is nil for a message without one.
	Key []byte
	// OrderingKey is Pulsar's ordering key, which decides about order instead of Key; empty: none.
	OrderingKey string
	// Value is nil for a null value (a tombstone), and not nil for an empty one.
	Value []byte
	// Headers in their order; names may repeat.
	Headers []Header
	// Time is the producer's timestamp, to the millisecond; zero when there is none.
	Time time.Time
	// AMQP is set for a message that came from RabbitMQ, directly or through another system.
	AMQP *AMQP
	// Origin is where the first route took the message from. Hops are the topics and queues that
	// earlier routes took it from, in order (see [PlaceName]). Hop is added behind them when the
	// message is sent; empty for none.
	Origin Origin
	Hops   []string
	Hop    string
	// OmitOrigin sends the message without its origin and the position of the last hop.
	OmitOrigin bool
	// From is where this Pigeonhole took it from. It is not sent.
	From From
}

// Header is a header of Kafka or AMQP, or a property of Pulsar.
type Header struct {
	Name string
	// Value is nil for a null value. If Typed is set, Value is the value as text.
	Value []byte
	// Typed is the value of an AMQP header that is not a string; else nil: a bool, int8, uint8,
	// int16, uint16, int32, uint32, int64, float32, float64, []byte, Decimal, time.Time, []any,
	// Table, or Null for AMQP's void.
	Typed any
}

// Null is AMQP's void value.
type Null struct{}

// Decimal is an AMQP decimal: Value / 10^Scale.
type Decimal struct {
	Scale uint8
	Value int32
}

// Table is an AMQP table within a header. Its values are those of Header.Typed, or strings.
type Table map[string]any

// AMQP holds the basic properties of an AMQP 0-9-1 message, except for the headers and the
// timestamp, and the exchange and routing key that it was published with.
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

// IsZero reports whether the origin is unknown.
func (o Origin) IsZero() bool { return o == Origin{} }

// From is a message's position at the source.
type From struct {
	System    string // kafka, rabbitmq or pulsar
	Cluster   string // its name in the configuration
	Topic     string // or queue
	TopicID   string // differs from that of a deleted topic of the same name; empty where the broker has none
	Partition int32  // -1 for none
	Offset    int64  // -1 for none
	// Stored is the source broker's time of storing the message; zero when unknown.
	Stored time.Time
	// Received is when this process received it.
	Received time.Time
}

// overhead is roughly the memory that a message takes besides its bytes.
const overhead = 256

// Size is the number of bytes that the message counts for while it is in flight.
func (m *Message) Size() int64 {
	n := overhead + len(m.Key) + len(m.Value) + m.entrySize()
	for i := range m.Headers {
		h := &m.Headers[i]
		n += 48 + len(h.Name) + len(h.Value) + typedSize(h.Typed)
	}
	return int64(n)
}

// entrySize is roughly the length of all entries, without EntryHeaders.
func (m *Message) entrySize() int {
	n := len(m.Hop) + len(m.OrderingKey)
	for _, place := range m.Hops {
		n += len(place) + 1
	}
	if o := &m.Origin; !o.IsZero() {
		n += len(o.System) + len(o.Cluster) + len(o.Topic) + len(o.ID) + 28
	}
	if f := &m.From; m.hasFrom() {
		n += len(f.System) + len(f.Cluster) + len(f.Topic) + len(f.TopicID) + 27
	}
	if m.AMQP != nil {
		number := "255"
		for _, f := range m.AMQP.fields(&number, &number) {
			if *f.value != "" {
				n += len(f.name) + len(*f.value) + 2
			}
		}
	}
	return n
}

// typedSize is roughly the memory of a value of Header.Typed.
func typedSize(v any) int {
	n := 8
	switch v := v.(type) {
	case nil:
		return 0
	case string:
		return len(v)
	case []byte:
		return len(v)
	case []any:
		for _, element := range v {
			n += 16 + typedSize(element)
		}
	case Table:
		for name, element := range v {
			n += 48 + len(name) + typedSize(element)
		}
	}
	return n
}
