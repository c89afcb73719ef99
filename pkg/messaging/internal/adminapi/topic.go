package adminapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/topicname"
)

// Topic manages one topic over the brokers' admin API ([Config].AdminURL), with the client's
// credentials. [Client.Topic] makes one. It is a plain value, and it is safe for concurrent use.
//
// The methods of Topic, [Subscription], [Namespace] and [Tenant] have in common:
// they try once; each request may take 5 seconds, one that changes something 30, and all end with
// ctx and with the client's Close. A request that was given up may have been carried out.
// The errors: [ErrNoAdminURL] without an AdminURL, [ErrClosed] after the client was closed,
// [ErrAuthentication] for refused credentials, [ErrAuthorization] for a lack of permission,
// [ErrTLS] for certificates that were not accepted, and [ErrNotFound] for what does not exist.
type Topic struct {
	api  *API
	name string
}

// Topic is the client's method of that name.
func (c *API) Topic(name string) Topic { return Topic{api: c, name: record.FullTopicName(name)} }

// Name is the full name: persistent://tenant/namespace/name.
func (t Topic) Name() string { return t.name }

// Namespace is the topic's namespace, to manage it.
func (t Topic) Namespace() Namespace {
	_, rest, _ := strings.Cut(t.name, "://")
	tenant, rest, _ := strings.Cut(rest, "/")
	name, _, _ := strings.Cut(rest, "/")
	return t.api.Namespace(tenant + "/" + name)
}

// Partition is the topic's partition with that index, as a separate topic. Calls that work on one
// partition only need it, for instance [Subscription.Skip]. It sends no request: the partition need
// not exist.
func (t Topic) Partition(index int) Topic {
	return Topic{api: t.api, name: topicname.Partition(t.name, index)}
}

// Create creates the topic: with partitions, or without any when partitions is 0. It is no error
// that the topic exists with the same number; with another it is [ErrExists].
func (t Topic) Create(ctx context.Context, partitions int) error {
	return t.manage(ctx, "create topic", func(ctx context.Context, a *client) error {
		if partitions < 0 {
			return fmt.Errorf("partitions must be >= 0, got %d", partitions)
		}
		var err error
		if partitions == 0 {
			err = a.do(ctx, http.MethodPut, topicPath(t.name), nil, nil)
		} else {
			err = a.do(ctx, http.MethodPut, topicPath(t.name)+"/partitions", partitions, nil)
		}
		if !refusedWith(err, http.StatusConflict) {
			return err
		}
		have, err := a.partitions(ctx, t.name)
		if err == nil && have != partitions {
			err = fmt.Errorf("%w with %s, not %s", ErrExists, partitionCount(have), partitionCount(partitions))
		}
		return err
	})
}

// SetPartitions adds partitions until the topic has that many. One that has more, one without
// partitions, and one that does not exist are [ErrExists]. Publishers use the new partitions for
// some of the keys: later messages of such a key may be consumed before earlier ones.
func (t Topic) SetPartitions(ctx context.Context, partitions int) error {
	return t.manage(ctx, "set partitions of topic", func(ctx context.Context, a *client) error {
		err := a.do(ctx, http.MethodPost, topicPath(t.name)+"/partitions", partitions, nil)
		return as(ErrExists, err, http.StatusConflict, http.StatusUnprocessableEntity)
	})
}

func partitionCount(n int) string {
	if n == 0 {
		return "no partitions"
	}
	return strconv.Itoa(n) + " partitions"
}

// Delete deletes the topic with its messages and its subscriptions. While publishers or consumers
// are connected to it that is [ErrBusy].
func (t Topic) Delete(ctx context.Context) error {
	return t.manage(ctx, "delete topic", func(ctx context.Context, a *client) error {
		n, err := a.partitions(ctx, t.name)
		if err != nil {
			return err
		}
		path := topicPath(t.name)
		if n > 0 {
			path += "/partitions"
		}
		err = a.do(ctx, http.MethodDelete, path, nil, nil)
		return as(ErrBusy, err, http.StatusPreconditionFailed, http.StatusConflict)
	})
}

// Exists reports whether the topic exists. It does not create it.
func (t Topic) Exists(ctx context.Context) (bool, error) {
	_, err := t.Partitions(ctx)
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

// Partitions returns how many partitions the topic has: 0 for a topic without partitions. Unlike
// [Client.Partitions] it never creates the topic.
func (t Topic) Partitions(ctx context.Context) (int, error) {
	return fetch(ctx, t, "partitions of topic", func(ctx context.Context, a *client) (int, error) {
		return a.partitions(ctx, t.name)
	})
}

func (c *client) partitions(ctx context.Context, topic string) (int, error) {
	type metadata struct {
		Partitions int `json:"partitions"`
	}
	m, err := get[metadata](ctx, c, topicPath(topic)+"/partitions?checkAllowAutoCreation=false")
	return m.Partitions, err
}

// Compact starts a compaction of the topic, of each partition where it has some, and does not wait
// for its end: [Topic.Compaction] reports that. While one runs, the error is [ErrBusy].
func (t Topic) Compact(ctx context.Context) error {
	return t.manage(ctx, "compact topic", func(ctx context.Context, a *client) error {
		return as(ErrBusy, a.do(ctx, http.MethodPut, topicPath(t.name)+"/compaction", nil, nil), http.StatusConflict)
	})
}

// CompactionState is how far the last compaction of a topic is.
type CompactionState string

const (
	// CompactionNotRun is a topic's of whose compactions the broker that serves it knows nothing.
	// It forgets them when it starts, or when another broker takes the topic over.
	CompactionNotRun CompactionState = "not run"
	// CompactionRunning is under way.
	CompactionRunning CompactionState = "running"
	// CompactionDone has succeeded.
	CompactionDone CompactionState = "done"
	// CompactionFailed has failed.
	CompactionFailed CompactionState = "failed"
)

// Compaction returns how far the last compaction is. With several partitions it is failed when one
// failed, else running while one runs, else not run when one did not run. reason is the broker's
// text about a failure.
func (t Topic) Compaction(ctx context.Context) (state CompactionState, reason string, err error) {
	err = t.manage(ctx, "compaction of topic", func(ctx context.Context, a *client) error {
		all, err := a.compactions(ctx, t.name)
		if err == nil {
			state, reason, err = compactionState(all)
		}
		return err
	})
	return state, reason, err
}

// compaction is the broker's answer about the last compaction of a partition.
type compaction struct {
	Status    string `json:"status"` // NOT_RUN, RUNNING, SUCCESS or ERROR
	LastError string `json:"lastError"`
}

// compactions asks about each partition of a topic, about the topic itself when it has none.
func (c *client) compactions(ctx context.Context, topic string) ([]compaction, error) {
	n, err := c.partitions(ctx, topic)
	if err != nil {
		return nil, err
	}
	of := make([]compaction, max(n, 1))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(concurrency)
	for i := range of {
		name := topic
		if n > 0 {
			name = topicname.Partition(topic, i)
		}
		group.Go(func() (err error) {
			of[i], err = get[compaction](ctx, c, topicPath(name)+"/compaction")
			return err
		})
	}
	return of, group.Wait()
}

func compactionState(all []compaction) (state CompactionState, reason string, err error) {
	state = CompactionDone
	for _, one := range all {
		switch one.Status {
		case "ERROR":
			return CompactionFailed, one.LastError, nil
		case "RUNNING":
			state = CompactionRunning
		case "NOT_RUN":
			if state == CompactionDone {
				state = CompactionNotRun
			}
		case "SUCCESS":
		default:
			return "", "", fmt.Errorf("the answer holds an unknown status %q", one.Status)
		}
	}
	return state, reason, nil
}

// Subscriptions lists the names of the topic's subscriptions.
func (t Topic) Subscriptions(ctx context.Context) ([]string, error) {
	return fetch(ctx, t, "subscriptions of topic", func(ctx context.Context, a *client) ([]string, error) {
		return a.subscriptions(ctx, t.name)
	})
}

func (c *client) subscriptions(ctx context.Context, topic string) ([]string, error) {
	names, err := get[[]string](ctx, c, topicPath(topic)+"/subscriptions")
	slices.Sort(names)
	return names, err
}

// Subscription returns the topic's subscription of that name, to manage it. It asks nothing: the
// subscription need not exist.
func (t Topic) Subscription(name string) Subscription { return Subscription{topic: t, name: name} }

// manage calls do when the topic's name is one that the admin API can have.
func (t Topic) manage(ctx context.Context, what string, do func(context.Context, *client) error) error {
	return t.api.manage(ctx, what+" "+t.name, func(ctx context.Context, a *client) error {
		if !record.PersistentTopic(t.name) {
			return errors.New("the name must be the name of a persistent topic")
		}
		return do(ctx, a)
	})
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
