package adminapi

import (
	"context"
	"errors"
	"fmt"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/auth"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// API is the brokers' admin API. It is safe for concurrent use.
type API struct {
	*cluster.Cluster

	http *client // nil: no address
}

// New asks nothing. Without an AdminURL all calls return ErrNoAdminURL.
func New(c *cluster.Cluster, cfg cluster.Config) (*API, error) {
	api := &API{Cluster: c}
	if cfg.AdminURL == "" {
		return api, nil
	}
	var err error
	api.http, err = newClient(cfg, auth.NewFaults(c.Log))
	return api, err
}

// HasURL reports whether an AdminURL is set.
func (c *API) HasURL() bool { return c.http != nil }

// manage calls do, until ctx ends or the client is closed. what names the call in errors.
func (c *API) manage(ctx context.Context, what string, do func(context.Context, *client) error) error {
	if !c.HasURL() {
		return ErrNoAdminURL
	}
	if err := c.Enter(); err != nil {
		return err
	}
	defer c.Leave()
	ctx, end := clientquirks.EitherEnds(ctx, c.Life) // Close does not wait for brokers that answer nothing
	defer end()
	defer c.http.use()()
	err := do(ctx, c.http)
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
	manage(ctx context.Context, what string, do func(context.Context, *client) error) error
}, what string, ask func(context.Context, *client) (T, error)) (v T, err error) {
	err = m.manage(ctx, what, func(ctx context.Context, a *client) (err error) {
		v, err = ask(ctx, a)
		return err
	})
	return v, err
}

// ClusterName is the client's method of that name.
func (c *API) ClusterName(ctx context.Context) (string, error) {
	type broker struct {
		ClusterName string `json:"clusterName"`
	}
	b, err := fetch(ctx, c, "name of the cluster", func(ctx context.Context, a *client) (broker, error) {
		return get[broker](ctx, a, "/admin/v2/brokers/configuration/runtime")
	})
	return b.ClusterName, err
}

// Clusters is the client's method of that name.
func (c *API) Clusters(ctx context.Context) ([]string, error) {
	return fetch(ctx, c, "clusters", func(ctx context.Context, a *client) ([]string, error) {
		return get[[]string](ctx, a, "/admin/v2/clusters")
	})
}
