package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Messages that were rejected go back to their topic once the cause is mended.
func ExampleClient_Redrive() {
	url, stop := exampleURL()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	client, topic := exampleOrders(ctx, url)
	defer func() { _ = client.Close(ctx) }()

	cfg := messaging.DefaultConsumerConfig()
	cfg.Topics = []string{topic}
	cfg.Subscription = "billing"
	cfg.Type = messaging.Failover
	billing, err := client.Consumer(cfg)
	if err != nil {
		log.Fatal(err)
	}
	_, err = billing.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		if string(d.Payload) == "paid" {
			return messaging.Reject(errors.New("no such currency"))
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	result, err := client.Redrive(ctx, messaging.RedriveConfig{
		Topic:        topic + "-billing-DLQ",
		Subscription: "billing",
		Rate:         1000,
		Filter: func(letter *messaging.DeadLetter) bool {
			fmt.Println(string(letter.Payload), "was given up:", letter.Reason)
			return letter.Reason == "no such currency"
		},
	})
	fmt.Println(result.Redriven, err)

	_, err = billing.Drain(ctx, func(_ context.Context, d *messaging.Delivery) error {
		fmt.Println(string(d.Payload), "at attempt", d.Attempt)
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// paid was given up: no such currency
	// 1 <nil>
	// paid at attempt 1
}
