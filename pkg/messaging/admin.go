package messaging

import (
	"context"
	"errors"
	"fmt"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
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
	*Cluster

	http *admin.Client // nil: no address
}

// NewAPI asks nothing. Without an AdminURL all calls return ErrNoAdminURL.
func NewAPI(c *Cluster, cfg Config) (*API, error) {
	http, err := newAdmin(cfg, c.log)
	if err != nil {
		return nil, err
	}
	return &API{Cluster: c, http: http}, nil
}

// manage calls do with the admin API, until ctx ends or the client is closed. what says
// what do does, in errors.
func (c *API) manage(ctx context.Context, what string, do func(context.Context, *admin.Client) error) error {
	if c.http == nil {
		return ErrNoAdminURL
	}
	if err := c.enter(); err != nil {
		return err
	}
	defer c.leave()
	ctx, end := eitherEnds(ctx, c.life) // Close does not wait for brokers that answer nothing
	defer end()
	defer c.http.Use()()
	err := do(ctx, c.http)
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), ErrClosed):
		return ErrClosed
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
