package monitoring

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
	"github.com/aviaryhq/aviary/test/systems/rabbitmq"
	"github.com/aviaryhq/aviary/test/systems/remotewrite"
)

// pace is how long each kind of traffic waits between two requests.
const pace = 50 * time.Millisecond

// numbers makes names that do not repeat.
var numbers atomic.Int64

// traffic sends something to each service until the test ends. What fails is not sent again:
// services are unavailable in between.
func (w *fixture) traffic() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	w.t.Cleanup(func() { cancel(); all.Wait() })
	producer, err := sarama.NewSyncProducer(w.kafka.Brokers(), kafka.Durable())
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = producer.Close() })
	for _, send := range []func(){
		func() { w.write(ctx, w.nightingale, 1) },
		func() {
			if !w.quiet.Load() {
				w.write(ctx, w.queued, 1)
			}
		},
		func() { w.writeInvalid(ctx) },
		func() { _, _, _ = producer.SendMessage(w.order()) },
		func() { _ = w.parcel(ctx, nil) },
		func() {
			_ = pulsar.Publish(ctx, w.pulsar.URL(), w.shipments, &messaging.Record{Payload: []byte("shipment")})
		},
		func() { w.set(ctx, w.zones[0], "value") },
		func() { w.set(ctx, w.zones[1], "value") },
		func() { w.set(ctx, w.jobs["sonic"][2], "value") },
		func() { w.event("order") },
	} {
		all.Go(func() {
			for ctx.Err() == nil {
				send()
				time.Sleep(pace) // between two requests
			}
		})
	}
}

// write sends a request of remote write with series that are new.
func (w *fixture) write(ctx context.Context, to *systems.Process, series int) {
	req := writetest.Request(series, 3)
	for i := range req.Timeseries {
		req.Timeseries[i].Samples[0].Timestamp = numbers.Add(1)
	}
	_, _ = remotewrite.Send(ctx, "http://"+to.AddressNow("http")+"/api/v1/write", req, nil)
}

// writeInvalid sends a series with a repeated label, while such are to be sent. Each is another one:
// what is sent again is not counted again.
func (w *fixture) writeInvalid(ctx context.Context) {
	if w.invalid.Load() {
		_, _ = remotewrite.Send(ctx, "http://"+w.nightingale.AddressNow("http")+"/api/v1/write", writetest.OneSeries("__name__", fmt.Sprint("x", numbers.Add(1)), "a", "1", "a", "2"), nil)
	}
}

func (w *fixture) order() *sarama.ProducerMessage {
	return &sarama.ProducerMessage{Topic: w.orders, Value: sarama.StringEncoder("order")}
}

func (w *fixture) parcel(ctx context.Context, headers amqp.Table) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	return rabbitmq.Publish(ctx, w.rabbit.URL(), w.parcels, amqp.Publishing{Headers: headers, Body: []byte("parcel")})
}

// set writes a key of a Sonic.
func (w *fixture) set(ctx context.Context, to *systems.Process, value string) {
	c := client(to)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = c.Set(ctx, fmt.Sprint("key-", numbers.Add(1)%100), value, 0).Err()
}

// event sends an event of a type to the bus.
func (w *fixture) event(kind string) (status int) {
	status, _ = w.send(http.MethodPost, "/v1/buses/orders/events", "application/cloudevents+json", map[string]any{
		"specversion": "1.0", "id": fmt.Sprint(numbers.Add(1)), "source": "/test", "type": kind, "data": map[string]any{},
	})
	return status
}

// publish sends a message to the subscribers of all zones.
func (w *fixture) publish(ctx context.Context, by *systems.Process, message string) {
	c := client(by)
	defer c.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_ = c.Publish(ctx, "channel", message).Err()
}

// flood sends much to Nightingale and to the Sonics of both zones, until stop is called. Messages of
// the second one are dropped once its outbox is full.
func (w *fixture) flood() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	for range 32 {
		all.Go(func() {
			for ctx.Err() == nil {
				w.write(ctx, w.nightingale, 100)
				w.set(ctx, w.zones[0], strings.Repeat("x", 50_000))
				w.publish(ctx, w.zones[1], strings.Repeat("x", 50_000))
			}
		})
	}
	return func() { cancel(); all.Wait() }
}
