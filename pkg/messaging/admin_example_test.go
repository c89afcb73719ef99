package messaging_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// A service that sets up what it needs, and may do so at every start.
func ExampleTopic_Create() {
	setUp := func(ctx context.Context, client *messaging.Client) error {
		orders := client.Topic("shop/business/orders")
		if err := orders.Create(ctx, 16); err != nil {
			return err // ErrExists: with another number of partitions
		}
		err := orders.Subscription("billing").Create(ctx, messaging.Earliest())
		if errors.Is(err, messaging.ErrExists) {
			return nil
		}
		return err
	}
	_ = setUp
}

// An operator looks at what waits, and has the last hour handled again.
func ExampleSubscription_Reset() {
	again := func(ctx context.Context, client *messaging.Client) error {
		billing := client.Topic("shop/business/orders").Subscription("billing")
		n, err := billing.Backlog(ctx)
		if err != nil {
			return err
		}
		fmt.Println(n, "messages wait")
		return billing.Reset(ctx, messaging.AtTime(time.Now().Add(-time.Hour)))
	}
	_ = again
}
