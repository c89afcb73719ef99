package load

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Driver is an implementation to measure. It is safe for concurrent use.
type Driver interface {
	// Producer opens a producer. It calls report once for each message of Send, from any goroutine,
	// with the due time of the message.
	Producer(ctx context.Context, topic string, report func(due time.Time, err error)) (Producer, error)
	// Consume receives messages of the subscription until ctx ends. For each it calls received, then
	// acknowledges it. The payload is valid until received returns.
	Consume(ctx context.Context, topic, subscription string, received func(payload []byte)) error
	// Figures returns figures that the driver itself measured, or nil.
	Figures() map[string]float64
	Close()
}

// Producer sends to one topic.
type Producer interface {
	// Send sends asynchronously. It waits only for space in its queue. due is passed to report; it is
	// zero for a message that is not timed.
	Send(ctx context.Context, m Message, due time.Time)
	// Call sends and waits for the acknowledgement. It does not call report.
	Call(ctx context.Context, m Message) error
	Flush(ctx context.Context) error
}

// Message is one message to send.
type Message struct {
	Key     string
	Payload []byte
}

// drivers returns the implementations by their names in scenarios.
func drivers() map[string]func(context.Context, messaging.Config, Turn) (Driver, error) {
	return map[string]func(context.Context, messaging.Config, Turn) (Driver, error){
		"library":      newLibrary,
		"client":       newClient,
		"transactions": newTransactions,
	}
}

// Drivers returns the names of the implementations.
func Drivers() []string { return slices.Sorted(maps.Keys(drivers())) }
