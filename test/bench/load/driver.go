// Package load runs one turn of a workload, the producers and consumers of one implementation, as
// a process of its own. It may import pulsar-client-go.
package load

import (
	"context"
	"errors"
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
	Key     string `json:"key"`
	Payload []byte `json:"payload"`
}

// drivers returns the implementations by their names. Scenario files cannot use kafka and rabbitmq,
// which need the URL of the turn.
func drivers() map[string]func(context.Context, messaging.Config, Turn) (Driver, error) {
	return map[string]func(context.Context, messaging.Config, Turn) (Driver, error){
		"library": newLibrary, "client": newClient, "transactions": newTransactions, "kafka": newKafka, "rabbitmq": newRabbitMQ,
	}
}

// Drivers returns the names of the implementations.
func Drivers() []string { return slices.Sorted(maps.Keys(drivers())) }

// geo publishes to one cluster and receives from the cluster to which it replicates. If stages are
// measured, a consumer in the first cluster receives too: its messages carry the time stamp of the
// first broker.
type geo struct {
	Driver
	remote Driver
	stages bool
}

func (g *geo) Consume(ctx context.Context, topic, subscription string, received func([]byte)) error {
	if !g.stages {
		return g.remote.Consume(ctx, topic, subscription, received)
	}
	ctx, stop := context.WithCancel(ctx)
	near := make(chan error, 1)
	go func() { near <- g.Driver.Consume(ctx, topic, subscription, func([]byte) {}) }()
	err := g.remote.Consume(ctx, topic, subscription, received)
	stop()
	return errors.Join(err, <-near)
}
