package adminapi

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// Backlog returns how many messages a subscription has not acknowledged: of topics, which map to
// whether they may lack the subscription, and of those that match pattern, if it is not empty. When
// all topics lack the subscription the error is [ErrNotFound].
func (c *API) Backlog(ctx context.Context, subscription string, topics map[string]bool, pattern string) (messages int64, err error) {
	return fetch(ctx, c, "backlog of subscription "+subscription, func(ctx context.Context, a *client) (int64, error) {
		if pattern != "" {
			matching, err := a.matching(ctx, pattern)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", pattern, err)
			}
			for _, topic := range matching {
				topics[topic] = true
			}
		}
		var sum, subscribed atomic.Int64
		group, ctx := errgroup.WithContext(ctx)
		group.SetLimit(concurrency)
		for topic, optional := range topics {
			group.Go(func() error {
				n, err := a.backlog(ctx, topic, subscription)
				if optional && errors.Is(err, ErrNotFound) {
					return nil
				}
				if err != nil {
					return fmt.Errorf("%s: %w", topic, err)
				}
				sum.Add(n)
				subscribed.Add(1)
				return nil
			})
		}
		if err := group.Wait(); err != nil {
			return 0, err
		}
		if subscribed.Load() == 0 && len(topics) > 0 {
			return 0, notSubscribed()
		}
		return sum.Load(), nil
	})
}

// backlog is the unacknowledged part of a topic for one subscription, over all partitions.
func (c *client) backlog(ctx context.Context, topic, subscription string) (int64, error) {
	// Clients' names and addresses make up most of the answer where there are many.
	const query = "?perPartition=false&getPreciseBacklog=false&subscriptionBacklogSize=false&excludePublishers=true&excludeConsumers=true"
	type topicStats struct {
		Subscriptions map[string]struct {
			MsgBacklog *int64 `json:"msgBacklog"`
		} `json:"subscriptions"`
	}
	stats, err := get[topicStats](ctx, c, topicPath(topic)+"/partitioned-stats"+query)
	if errors.Is(err, ErrNotFound) { // it has no partitions, or is one
		stats, err = get[topicStats](ctx, c, topicPath(topic)+"/stats"+query)
	}
	if err != nil {
		return 0, err
	}
	s, ok := stats.Subscriptions[subscription]
	switch {
	case !ok:
		return 0, notSubscribed()
	case s.MsgBacklog == nil:
		return 0, errors.New("the answer holds no msgBacklog")
	}
	return max(*s.MsgBacklog, 0), nil
}

// matching lists the topics of a namespace that match a pattern, each partition under its topic's
// name. A pattern is of persistent topics.
func (c *client) matching(ctx context.Context, pattern string) ([]string, error) {
	matches, err := clientquirks.PatternMatcher(pattern)
	if err != nil {
		return nil, err
	}
	_, name, _ := strings.Cut(pattern, "://")
	parts := strings.SplitN(name, "/", 3) // three: the configuration was validated
	all, err := get[[]string](ctx, c, namespacePath("persistent", parts[0]+"/"+parts[1]))
	if err != nil {
		return nil, err
	}
	var found []string
	for _, topic := range all {
		if topic = topicname.WithoutPartition(topic); matches(topic) {
			found = append(found, topic)
		}
	}
	return found, nil
}
