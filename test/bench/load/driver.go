package load

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Driver is an implementation that can be measured. It is used by many goroutines.
type Driver interface {
	// Producer opens a producer. report is called once for each message that is sent, by any
	// goroutine, with the time that was given with it.
	Producer(ctx context.Context, topic string, report func(due time.Time, err error)) (Producer, error)
	// Consume calls received for each message of the subscription, which it then acknowledges,
	// until ctx ends. The payload is the caller's until received returns.
	Consume(ctx context.Context, topic, subscription string, received func(payload []byte)) error
	// Figures are what the driver itself measured; may be nil.
	Figures() map[string]float64
	Close()
}

// Producer sends to one topic.
type Producer interface {
	// Send sends asynchronously, and waits only for space in its queue. due is for report; the zero
	// time if nobody times the message.
	Send(ctx context.Context, m Message, due time.Time)
	// Call sends and waits for the acknowledgement. It reports nothing.
	Call(ctx context.Context, m Message) error
	Flush(ctx context.Context) error
}

// Message is one message to send.
type Message struct {
	Key     string
	Payload []byte
}

// drivers are the implementations by the names that scenarios use.
func drivers() map[string]func(context.Context, messaging.Config, Turn) (Driver, error) {
	return map[string]func(context.Context, messaging.Config, Turn) (Driver, error){
		"library":      newLibrary,
		"client":       newClient,
		"transactions": newTransactions,
	}
}

// Drivers are the names of the implementations.
func Drivers() []string { return slices.Sorted(maps.Keys(drivers())) }
