package adminapi

import (
	"context"
	"errors"
	"strings"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
)

// Tenant manages one tenant over the brokers' admin API. [Client.Tenant] makes one. It is a plain
// value, and it is safe for concurrent use. [Topic] says what limits and errors the methods have in
// common. All of them need a superuser.
type Tenant struct {
	api  *API
	name string
}

// Tenant is the client's method of that name.
func (c *API) Tenant(name string) Tenant { return Tenant{api: c, name: name} }

// Create creates the tenant, whose namespaces may be in these clusters. The tenant has no admin:
// superusers manage its namespaces. One that exists is [ErrExists] and stays as it is.
func (t Tenant) Create(ctx context.Context, clusters []string) error {
	return t.manage(ctx, "create", func(ctx context.Context, a *admin.Client) error { return a.CreateTenant(ctx, t.name, clusters) })
}

// AllowedClusters returns the clusters that the tenant's namespaces may be in.
func (t Tenant) AllowedClusters(ctx context.Context) ([]string, error) {
	return fetch(ctx, t, "clusters of", func(ctx context.Context, a *admin.Client) ([]string, error) {
		return a.AllowedClusters(ctx, t.name)
	})
}

// SetAllowedClusters changes the clusters that the tenant's namespaces may be in.
func (t Tenant) SetAllowedClusters(ctx context.Context, clusters []string) error {
	return t.manage(ctx, "set clusters of", func(ctx context.Context, a *admin.Client) error {
		return a.SetAllowedClusters(ctx, t.name, clusters)
	})
}

func (t Tenant) manage(ctx context.Context, what string, do func(context.Context, *admin.Client) error) error {
	return t.api.manage(ctx, what+" tenant "+t.name, func(ctx context.Context, a *admin.Client) error {
		if t.name == "" || strings.Contains(t.name, "/") {
			return errors.New("the name must be a tenant's")
		}
		return do(ctx, a)
	})
}

// ClusterName is the client's method of that name.
func (c *API) ClusterName(ctx context.Context) (string, error) {
	return fetch(ctx, c, "name of the cluster", func(ctx context.Context, a *admin.Client) (string, error) {
		return a.ClusterName(ctx)
	})
}

// Clusters is the client's method of that name.
func (c *API) Clusters(ctx context.Context) ([]string, error) {
	return fetch(ctx, c, "clusters", func(ctx context.Context, a *admin.Client) ([]string, error) {
		return a.Clusters(ctx)
	})
}
