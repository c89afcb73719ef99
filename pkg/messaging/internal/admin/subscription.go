package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// MessageID is a message's place. In requests a Batch of -1 means the whole entry.
type MessageID struct {
	Ledger    int64 `json:"ledgerId"`
	Entry     int64 `json:"entryId"`
	Partition int32 `json:"partitionIndex"`
	Batch     int32 `json:"batchIndex"`
}

// Earliest and Latest are the ends of a topic, whatever it holds.
func Earliest() MessageID { return MessageID{Ledger: -1, Entry: -1, Partition: -1, Batch: -1} }

// Latest is the place behind the last message.
func Latest() MessageID {
	return MessageID{Ledger: math.MaxInt64, Entry: math.MaxInt64, Partition: -1, Batch: -1}
}

// CreateSubscription creates a subscription whose first message is that of id, or the next that the
// topic has. One that exists is an [ErrExists].
func (c *Client) CreateSubscription(ctx context.Context, topic, name string, id MessageID) error {
	err := c.do(ctx, http.MethodPut, subscriptionPath(topic, name), id, nil)
	return as(ErrExists, err, http.StatusConflict)
}

// DeleteSubscription deletes a subscription. One that has consumers is an [ErrBusy].
func (c *Client) DeleteSubscription(ctx context.Context, topic, name string) error {
	err := c.do(ctx, http.MethodDelete, subscriptionPath(topic, name), nil, nil)
	return as(ErrBusy, err, http.StatusPreconditionFailed, http.StatusConflict)
}

// Subscriptions lists the subscriptions of a topic, by name.
func (c *Client) Subscriptions(ctx context.Context, topic string) ([]string, error) {
	var names []string
	if err := c.get(ctx, topicPath(topic)+"/subscriptions", &names); err != nil {
		return nil, err
	}
	slices.Sort(names)
	return names, nil
}

// ResetToTime makes the first message that was published at t or later the next of a subscription.
func (c *Client) ResetToTime(ctx context.Context, topic, name string, t time.Time) error {
	path := subscriptionPath(topic, name) + "/resetcursor/" + strconv.FormatInt(t.UnixMilli(), 10)
	return as(ErrBusy, c.do(ctx, http.MethodPost, path, nil, nil), http.StatusConflict)
}

// ResetToID makes the message of id the next of a subscription.
func (c *Client) ResetToID(ctx context.Context, topic, name string, id MessageID) error {
	path := subscriptionPath(topic, name) + "/resetcursor"
	return as(ErrBusy, c.do(ctx, http.MethodPost, path, id, nil), http.StatusConflict)
}

// Skip acknowledges the first n entries that a subscription has not acknowledged.
func (c *Client) Skip(ctx context.Context, topic, name string, n int) error {
	return c.do(ctx, http.MethodPost, subscriptionPath(topic, name)+"/skip/"+strconv.Itoa(n), nil, nil)
}

// SkipAll acknowledges everything that a topic holds.
func (c *Client) SkipAll(ctx context.Context, topic, name string) error {
	return c.do(ctx, http.MethodPost, subscriptionPath(topic, name)+"/skip_all", nil, nil)
}

func subscriptionPath(topic, name string) string {
	return topicPath(topic) + "/subscription/" + url.PathEscape(name)
}

// Backlog is what a subscription has not acknowledged of one topic, all of its partitions together.
// A topic without the subscription is an [ErrNotFound].
func (c *Client) Backlog(ctx context.Context, topic, subscription string) (int64, error) {
	// Clients' names and addresses make up most of the answer where there are many.
	const query = "?perPartition=false&getPreciseBacklog=false&subscriptionBacklogSize=false&excludePublishers=true&excludeConsumers=true"
	var stats struct {
		Subscriptions map[string]struct {
			MsgBacklog *int64 `json:"msgBacklog"`
		} `json:"subscriptions"`
	}
	err := c.get(ctx, topicPath(topic)+"/partitioned-stats"+query, &stats)
	if errors.Is(err, ErrNotFound) { // it has no partitions, or is one
		err = c.get(ctx, topicPath(topic)+"/stats"+query, &stats)
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

// TotalBacklog sums the backlogs of a subscription over topics, each with whether it may lack the
// subscription. When all lack it the error is [ErrNotFound].
func (c *Client) TotalBacklog(ctx context.Context, topics map[string]bool, subscription string) (int64, error) {
	var sum, subscribed atomic.Int64
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for topic, optional := range topics {
		group.Go(func() error {
			n, err := c.Backlog(ctx, topic, subscription)
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
}

// Matching lists the topics of a namespace that match a pattern, with one name for all partitions
// of a topic. A pattern is of persistent topics.
func (c *Client) Matching(ctx context.Context, pattern string) ([]string, error) {
	matches, err := clientquirks.PatternMatcher(pattern)
	if err != nil {
		return nil, err
	}
	_, name, _ := strings.Cut(pattern, "://")
	parts := strings.SplitN(name, "/", 3) // three: the configuration was validated
	var all []string
	if err := c.get(ctx, namespacePath("persistent", parts[0]+"/"+parts[1]), &all); err != nil {
		return nil, err
	}
	var found []string
	for _, topic := range all {
		if topic = topicname.WithoutPartition(topic); matches(topic) {
			found = append(found, topic) // a topic as often as it has partitions
		}
	}
	return found, nil
}
