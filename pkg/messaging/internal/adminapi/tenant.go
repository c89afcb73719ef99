package adminapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
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

// tenantInfo is a tenant as the API has it.
type tenantInfo struct {
	AdminRoles      []string `json:"adminRoles"`
	AllowedClusters []string `json:"allowedClusters"`
}

// Create creates the tenant, whose namespaces may be in these clusters. The tenant has no admin:
// superusers manage its namespaces. One that exists is [ErrExists] and stays as it is.
func (t Tenant) Create(ctx context.Context, clusters []string) error {
	return t.manage(ctx, "create", func(ctx context.Context, a *client) error {
		info := tenantInfo{AdminRoles: []string{}, AllowedClusters: clusters}
		return as(ErrExists, a.do(ctx, http.MethodPut, t.path(), info, nil), http.StatusConflict)
	})
}

// AllowedClusters returns the clusters that the tenant's namespaces may be in.
func (t Tenant) AllowedClusters(ctx context.Context) ([]string, error) {
	info, err := fetch(ctx, t, "clusters of", func(ctx context.Context, a *client) (tenantInfo, error) {
		return get[tenantInfo](ctx, a, t.path())
	})
	return info.AllowedClusters, err
}

// SetAllowedClusters changes the clusters that the tenant's namespaces may be in.
func (t Tenant) SetAllowedClusters(ctx context.Context, clusters []string) error {
	return t.manage(ctx, "set clusters of", func(ctx context.Context, a *client) error {
		info, err := get[tenantInfo](ctx, a, t.path()) // keeps the admin roles
		if err != nil {
			return err
		}
		info.AllowedClusters = clusters
		return a.do(ctx, http.MethodPost, t.path(), info, nil)
	})
}

func (t Tenant) path() string { return "/admin/v2/tenants/" + url.PathEscape(t.name) }

func (t Tenant) manage(ctx context.Context, what string, do func(context.Context, *client) error) error {
	return t.api.manage(ctx, what+" tenant "+t.name, func(ctx context.Context, a *client) error {
		if t.name == "" || strings.Contains(t.name, "/") {
			return errors.New("the name must be the name of a tenant")
		}
		return do(ctx, a)
	})
}
