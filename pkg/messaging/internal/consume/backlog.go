package consume

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

// Backlog returns how many messages the subscription has not acknowledged, over all of
// its topics and its retry topic: those that wait at the brokers and those that were
// delivered and are not done with. With Pattern it counts the topics that have the
// subscription by now.
//
// It asks the brokers' admin API ([Config].AdminURL), and the figure is theirs, as it was
// some moment ago: a batch of messages counts as one, markers of transactions count as
// well, and a partition that no broker serves at the moment counts as nothing.
//
// Each request may take 5 seconds; a topic takes one or two, four topics are asked about
// side by side, and all ends with ctx. Without an AdminURL the error is [ErrNoAdminURL],
// after the client was closed [ErrClosed]; refused credentials are [ErrAuthentication],
// a lack of permission (to look up the topics) [ErrAuthorization], and certificates that
// were not accepted [ErrTLS]. A topic that does not exist, or does not have the
// subscription yet, is [ErrNotFound]. There is no figure with an error.
//
// It may be called from any goroutine, inside Run and outside of it, and does not need
// the consumer to be connected.
func (c *Consumer) Backlog(ctx context.Context) (messages int64, err error) {
	topics := make(map[string]bool) // true: it may not have the subscription
	pattern := ""
	for _, src := range c.cfg.sources() {
		if src.pattern != "" {
			pattern = clientquirks.Anchored(src.pattern)
			continue
		}
		topics[src.topic] = src.retry
	}
	return c.parent.api.Backlog(ctx, c.cfg.Subscription, topics, pattern)
}
