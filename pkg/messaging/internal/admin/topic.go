package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// CreateTopic creates a topic, without partitions when partitions is 0. A topic that exists as
// asked for is no error; one that differs is an [ErrExists].
func (c *Client) CreateTopic(ctx context.Context, topic string, partitions int) error {
	var err error
	if partitions == 0 {
		err = c.do(ctx, http.MethodPut, topicPath(topic), nil, nil)
	} else {
		err = c.do(ctx, http.MethodPut, topicPath(topic)+"/partitions", partitions, nil)
	}
	if !refusedWith(err, http.StatusConflict) {
		return err
	}
	have, err := c.Partitions(ctx, topic)
	if err != nil {
		return err
	}
	if have != partitions {
		return fmt.Errorf("%w with %s, not %s", ErrExists, partitionCount(have), partitionCount(partitions))
	}
	return nil
}

// SetPartitions adds partitions to a topic that has some, until it has that many. A topic without
// partitions, and one with more, is an [ErrExists].
func (c *Client) SetPartitions(ctx context.Context, topic string, partitions int) error {
	err := c.do(ctx, http.MethodPost, topicPath(topic)+"/partitions", partitions, nil)
	return as(ErrExists, err, http.StatusConflict, http.StatusUnprocessableEntity)
}

func partitionCount(n int) string {
	if n == 0 {
		return "no partitions"
	}
	return strconv.Itoa(n) + " partitions"
}

// Partitions is how many partitions a topic has: 0 without partitions. A topic that does not exist
// is an [ErrNotFound].
func (c *Client) Partitions(ctx context.Context, topic string) (int, error) {
	var meta struct {
		Partitions int `json:"partitions"`
	}
	err := c.get(ctx, topicPath(topic)+"/partitions?checkAllowAutoCreation=false", &meta)
	return meta.Partitions, err
}

// DeleteTopic deletes a topic with all that it holds. One that clients use is an [ErrBusy].
func (c *Client) DeleteTopic(ctx context.Context, topic string) error {
	path, err := c.wholePath(ctx, topic)
	if err != nil {
		return err
	}
	err = c.do(ctx, http.MethodDelete, path, nil, nil)
	return as(ErrBusy, err, http.StatusPreconditionFailed, http.StatusConflict)
}

// wholePath is the path of a topic with all its partitions.
func (c *Client) wholePath(ctx context.Context, topic string) (string, error) {
	n, err := c.Partitions(ctx, topic)
	if err != nil {
		return "", err
	}
	if n == 0 {
		return topicPath(topic), nil
	}
	return topicPath(topic) + "/partitions", nil
}

// Compact starts a compaction of a topic, or of all its partitions. One that runs is an [ErrBusy].
func (c *Client) Compact(ctx context.Context, topic string) error {
	return as(ErrBusy, c.do(ctx, http.MethodPut, topicPath(topic)+"/compaction", nil, nil), http.StatusConflict)
}

// Compaction is what the broker says about the last compaction of a topic.
type Compaction struct {
	Status    string `json:"status"` // NOT_RUN, RUNNING, SUCCESS or ERROR
	LastError string `json:"lastError"`
}

// Compaction asks about the last compaction of each partition of a topic, of the topic itself when
// it has none.
func (c *Client) Compaction(ctx context.Context, topic string) ([]Compaction, error) {
	n, err := c.Partitions(ctx, topic)
	if err != nil {
		return nil, err
	}
	names := []string{topic}
	if n > 0 {
		names = make([]string, n)
		for i := range names {
			names[i] = topicname.Partition(topic, i)
		}
	}
	of := make([]Compaction, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i, name := range names {
		group.Go(func() error { return c.get(ctx, topicPath(name)+"/compaction", &of[i]) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	return of, nil
}

// topicPath is where the admin API has a topic, whose name is a full one.
func topicPath(topic string) string {
	domain, rest, _ := strings.Cut(topic, "://")
	parts := strings.SplitN(rest, "/", 3)
	for i, part := range parts {
		parts[i] = url.PathEscape(part)
	}
	return "/admin/v2/" + domain + "/" + strings.Join(parts, "/")
}

// namespacePath is where the admin API has a kind of things of a namespace, tenant/namespace.
func namespacePath(kind, namespace string) string {
	tenant, name, _ := strings.Cut(namespace, "/")
	return "/admin/v2/" + kind + "/" + url.PathEscape(tenant) + "/" + url.PathEscape(name)
}
