package messaging_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// exampleURL is the Pulsar that tests share, or a server in this process that
// speaks its protocol where there is none.
func exampleURL() (url string, stop func()) {
	if url := os.Getenv("AVIARY_TEST_PULSAR_URL"); url != "" {
		return url, func() {}
	}
	s, err := fakebroker.Listen()
	if err != nil {
		log.Fatal(err)
	}
	return s.URL(), func() { _ = s.Close() }
}

// exampleTopic names a topic of this run's own.
func exampleTopic(name string) string {
	return "persistent://public/default/example-" + name + "-" + rand.Text()
}

// Publish returns when the broker has stored every record.
func ExamplePublisher_Publish() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close(ctx) }()

	orders, err := client.Publisher(ctx, exampleTopic("orders"), messaging.Business())
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Publish(ctx,
		&messaging.Record{Key: "order-7", Payload: []byte(`{"state":"paid"}`)},
		&messaging.Record{Key: "order-7", Payload: []byte(`{"state":"shipped"}`)},
	)
	fmt.Println("stored:", err == nil)
	// Output: stored: true
}

// PublishAsync waits for room in the queue only; the outcome comes later, once.
func ExamplePublisher_PublishAsync() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	metrics, err := client.Publisher(ctx, exampleTopic("metrics"), messaging.Ops())
	if err != nil {
		log.Fatal(err)
	}
	stored := 0
	for i := range 1000 {
		r := &messaging.Record{Payload: fmt.Append(nil, i)}
		metrics.PublishAsync(ctx, r, func(_ messaging.MessageID, err error) {
			if err == nil {
				stored++ // done functions of one partition never run at the same time
			}
		})
	}
	// Close waits for what was accepted, and would count what was not acknowledged.
	fmt.Println("close:", client.Close(ctx))
	fmt.Println("stored:", stored)
	// Output:
	// close: <nil>
	// stored: 1000
}
