package adminapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

var (
	// ErrNoAdminURL is returned by what asks the brokers' admin API when no
	// [Config].AdminURL is set.
	ErrNoAdminURL = errors.New("messaging: no admin_url is set, the address of the brokers' admin API")
	// ErrNotFound is in the error of a call of the admin API about a topic, a subscription
	// or a namespace that does not exist. Publishers have [ErrTopicNotFound].
	ErrNotFound = admin.ErrNotFound
	// ErrExists is in the error of a call that creates what exists already, otherwise than
	// it was asked for.
	ErrExists = admin.ErrExists
	// ErrBusy is in the error of a call of the admin API that has to wait for others:
	// clients use the topic or the subscription, or the same operation runs.
	ErrBusy = admin.ErrBusy
)

// API is the brokers' admin API. It is safe for concurrent use.
type API struct {
	*cluster.Cluster

	Http *admin.Client // nil: no address
}

// New asks nothing. Without an AdminURL all calls return ErrNoAdminURL.
func New(c *cluster.Cluster, cfg cluster.Config) (*API, error) {
	http, err := cluster.NewAdmin(cfg, c.Log)
	if err != nil {
		return nil, err
	}
	return &API{Cluster: c, Http: http}, nil
}

// manage calls do with the admin API, until ctx ends or the client is closed. what says
// what do does, in errors.
func (c *API) manage(ctx context.Context, what string, do func(context.Context, *admin.Client) error) error {
	if c.Http == nil {
		return ErrNoAdminURL
	}
	if err := c.Enter(); err != nil {
		return err
	}
	defer c.Leave()
	ctx, end := clientquirks.EitherEnds(ctx, c.Life) // Close does not wait for brokers that answer nothing
	defer end()
	defer c.Http.Use()()
	err := do(ctx, c.Http)
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), record.ErrClosed):
		return record.ErrClosed
	default:
		return fmt.Errorf("messaging: %s: %w", what, err)
	}
}

// fetch is manage of m for a call that returns something.
func fetch[T any](ctx context.Context, m interface {
	manage(ctx context.Context, what string, do func(context.Context, *admin.Client) error) error
}, what string, ask func(context.Context, *admin.Client) (T, error)) (v T, err error) {
	err = m.manage(ctx, what, func(ctx context.Context, a *admin.Client) (err error) {
		v, err = ask(ctx, a)
		return err
	})
	return v, err
}

// Backlog returns how many messages a subscription has not acknowledged: of topics, which map to
// whether they may lack the subscription, and of those that match pattern, if it is not empty.
func (c *API) Backlog(ctx context.Context, subscription string, topics map[string]bool, pattern string) (messages int64, err error) {
	return fetch(ctx, c, "backlog of subscription "+subscription, func(ctx context.Context, a *admin.Client) (int64, error) {
		if pattern != "" {
			matching, err := a.Matching(ctx, pattern)
			if err != nil {
				return 0, fmt.Errorf("%s: %w", pattern, err)
			}
			for _, topic := range matching {
				topics[topic] = true
			}
		}
		return a.TotalBacklog(ctx, topics, subscription)
	})
}
