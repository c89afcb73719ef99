package messaging

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

// adminConcurrency is how many topics are asked about at once.
const adminConcurrency = 4

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
// subscription yet, is an error, too. There is no figure with an error.
//
// It may be called from any goroutine, inside Run and outside of it, and does not need
// the consumer to be connected.
func (c *Consumer) Backlog(ctx context.Context) (messages int64, err error) {
	a := c.client.admin
	if a == nil {
		return 0, ErrNoAdminURL
	}
	if err := c.client.enter(); err != nil {
		return 0, err
	}
	defer c.client.leave()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() { // the client's Close does not wait for brokers that answer nothing
		select {
		case <-c.client.closing:
			end(ErrClosed)
		case <-ctx.Done():
		}
	}()
	// Connections serve one call: the next sees rotated certificates, and a closed
	// client leaves none behind.
	defer a.http.CloseIdleConnections()
	messages, err = c.backlog(ctx, a)
	switch {
	case err == nil:
		return messages, nil
	case errors.Is(context.Cause(ctx), ErrClosed):
		return 0, ErrClosed
	default:
		return 0, fmt.Errorf("messaging: backlog of subscription %s: %w", c.cfg.Subscription, err)
	}
}

func (c *Consumer) backlog(ctx context.Context, a *admin) (int64, error) {
	topics := make(map[string]bool) // to whether it may lack the subscription
	for _, src := range c.cfg.sources() {
		if src.pattern == "" {
			topics[src.topic] = src.retry
			continue
		}
		matching, err := a.matching(ctx, src.pattern)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", src, err)
		}
		for _, topic := range matching {
			topics[topic] = true
		}
	}
	var sum, subscribed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(adminConcurrency)
	for topic, optional := range topics {
		group.Go(func() error {
			n, err := a.backlog(ctx, topic, c.cfg.Subscription)
			if optional && (missing(err) || errors.Is(err, errNotSubscribed)) {
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
		return 0, errNotSubscribed
	}
	return sum.Load(), nil
}

// errNotSubscribed: there is no figure, as opposed to none waiting. It also is what is
// heard of a topic none of whose partitions is served.
var errNotSubscribed = errors.New("no such subscription at present")

// backlog is what a subscription has not acknowledged of one topic, all of its
// partitions together.
func (a *admin) backlog(ctx context.Context, topic, subscription string) (int64, error) {
	// Clients' names and addresses make up most of the answer where there are many.
	const query = "?perPartition=false&getPreciseBacklog=false&subscriptionBacklogSize=false&excludePublishers=true&excludeConsumers=true"
	var stats struct {
		Subscriptions map[string]struct {
			MsgBacklog *int64 `json:"msgBacklog"`
		} `json:"subscriptions"`
	}
	err := a.get(ctx, adminPath(topic)+"/partitioned-stats"+query, &stats)
	if missing(err) { // it has no partitions, or is one
		err = a.get(ctx, adminPath(topic)+"/stats"+query, &stats)
	}
	if err != nil {
		return 0, err
	}
	s, ok := stats.Subscriptions[subscription]
	switch {
	case !ok:
		return 0, errNotSubscribed
	case s.MsgBacklog == nil:
		return 0, errors.New("the answer holds no msgBacklog")
	}
	return max(*s.MsgBacklog, 0), nil
}

// matching lists the topics of a namespace that match a pattern as the underlying client
// matches it (pulsar-client-go v0.21.0 consumer_regex.go): persistent ones only, by the
// name without -partition-N, and from the tenant on.
func (a *admin) matching(ctx context.Context, pattern string) ([]string, error) {
	_, name, _ := strings.Cut(pattern, "://")
	re, err := regexp.Compile(name)
	if err != nil {
		return nil, err
	}
	parts := strings.SplitN(name, "/", 3) // three: Validate has seen to it
	var all []string
	if err := a.get(ctx, "/admin/v2/persistent/"+url.PathEscape(parts[0])+"/"+url.PathEscape(parts[1]), &all); err != nil {
		return nil, err
	}
	var found []string
	for _, topic := range all {
		topic = withoutPartition(topic)
		if _, name, ok := strings.Cut(topic, "://"); ok && re.MatchString(name) {
			found = append(found, topic) // a topic as often as it has partitions
		}
	}
	return found, nil
}

// withoutPartition is the name of the topic that a partition belongs to.
func withoutPartition(topic string) string {
	i := strings.LastIndex(topic, partitionMark)
	if i < 0 || strings.Trim(topic[i+len(partitionMark):], "0123456789") != "" {
		return topic
	}
	return topic[:i]
}

// adminPath is where the admin API has a topic, whose name is a full one.
func adminPath(topic string) string {
	domain, rest, _ := strings.Cut(topic, "://")
	parts := strings.SplitN(rest, "/", 3)
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/admin/v2/" + domain + "/" + strings.Join(parts, "/")
}
