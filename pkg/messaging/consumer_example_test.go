package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// exampleOrders returns a client and a topic that holds three orders.
func exampleOrders(ctx context.Context, url string) (client *messaging.Client, topic string) {
	client, err := messaging.Dial(ctx, messaging.Config{URL: url})
	if err != nil {
		log.Fatal(err)
	}
	topic = exampleTopic("orders")
	orders, err := client.Publisher(ctx, topic, messaging.Business())
	if err != nil {
		log.Fatal(err)
	}
	for _, state := range []string{"placed", "paid", "shipped"} {
		if err := orders.Publish(ctx, &messaging.Record{Key: "order-7", Payload: []byte(state)}); err != nil {
			log.Fatal(err)
		}
	}
	return client, topic
}

// Run handles messages until its context ends. When it returns, every handler has
// finished and no message is kept from the next consumer.
func ExampleConsumer_Run() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, topic := exampleOrders(ctx, url)
	defer func() { _ = client.Close(ctx) }()

	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics = []string{topic}
	cfg.Subscription = "billing"
	cfg.Type = messaging.Failover // keeps order per key
	billing, err := client.Consumer(cfg)
	if err != nil {
		log.Fatal(err)
	}

	running, done := context.WithCancel(ctx)
	err = billing.Run(running, func(_ context.Context, d *messaging.Delivery) error {
		fmt.Println(d.Key, string(d.Payload))
		if string(d.Payload) == "shipped" {
			done()
		}
		return nil // acknowledged
	})
	fmt.Println(err)
	// Output:
	// order-7 placed
	// order-7 paid
	// order-7 shipped
	// <nil>
}

// Drain consumes what is there now, as a job that is started from outside does.
func ExampleConsumer_Drain() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, topic := exampleOrders(ctx, url)
	defer func() { _ = client.Close(ctx) }()

	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics = []string{topic}
	cfg.Subscription = "nightly"
	cfg.Type = messaging.Exclusive
	nightly, err := client.Consumer(cfg)
	if err != nil {
		log.Fatal(err)
	}
	n, err := nightly.Drain(ctx, func(context.Context, *messaging.Delivery) error { return nil })
	fmt.Println(n, err)
	// Output: 3 <nil>
}

// What a handler returns is the verdict on its message.
func ExampleHandler() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, topic := exampleOrders(ctx, url)
	defer func() { _ = client.Close(ctx) }()

	handler := func(_ context.Context, d *messaging.Delivery) error {
		switch {
		case string(d.Payload) == "placed":
			// To the dead-letter topic, with this reason.
			return messaging.Reject(errors.New("not a state we know"))
		case string(d.Payload) == "paid" && d.Attempt == 1:
			// Again, no sooner than this. Later orders of the key wait behind it.
			return messaging.RetryAfter(errors.New("ledger is closed"), 10*time.Millisecond)
		}
		fmt.Println(string(d.Payload), "at attempt", d.Attempt)
		return nil
	}

	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics = []string{topic}
	cfg.Subscription = "ledger"
	cfg.Type = messaging.Exclusive
	ledger, err := client.Consumer(cfg)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := ledger.Drain(ctx, handler); err != nil {
		log.Fatal(err)
	}

	cfg.Topics = []string{topic + "-ledger-DLQ"}
	dead, err := client.Consumer(cfg)
	if err != nil {
		log.Fatal(err)
	}
	_, err = dead.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		fmt.Println(string(d.Payload), "rejected:", d.Properties[messaging.PropertyReason])
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// paid at attempt 2
	// shipped at attempt 1
	// placed rejected: not a state we know
}
