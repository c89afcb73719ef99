//go:build !race

package messaging_test

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// What the randomised test calls by name in the library, where it is not what every test calls.

type pendingDelivery = messaging.PendingDelivery

func complete(p pendingDelivery, verdict error) { p.Complete(verdict) }

func runAsync(ctx context.Context, c *messaging.Consumer, h func(context.Context, *messaging.Delivery, pendingDelivery)) error {
	return c.RunAsync(ctx, h)
}

func own(p *messaging.Profile) { p.Ownership = messaging.ExclusiveOwnership }
