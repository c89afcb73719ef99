package admin

import (
	"context"
	"net/http"
	"net/url"
)

// ClusterName returns the name of this cluster.
func (c *Client) ClusterName(ctx context.Context) (string, error) {
	var broker struct {
		ClusterName string `json:"clusterName"`
	}
	err := c.get(ctx, "/admin/v2/brokers/configuration/runtime", &broker)
	return broker.ClusterName, err
}

// Clusters lists the clusters that this one knows, itself too.
func (c *Client) Clusters(ctx context.Context) ([]string, error) {
	var names []string
	err := c.get(ctx, "/admin/v2/clusters", &names)
	return names, err
}

// tenantInfo is a tenant as the API has it.
type tenantInfo struct {
	AdminRoles      []string `json:"adminRoles"`
	AllowedClusters []string `json:"allowedClusters"`
}

// AllowedClusters returns the clusters that namespaces of a tenant may be in.
func (c *Client) AllowedClusters(ctx context.Context, tenant string) ([]string, error) {
	var info tenantInfo
	err := c.get(ctx, tenantPath(tenant), &info)
	return info.AllowedClusters, err
}

// SetAllowedClusters changes them, and keeps the tenant's admin roles.
func (c *Client) SetAllowedClusters(ctx context.Context, tenant string, clusters []string) error {
	var info tenantInfo
	if err := c.get(ctx, tenantPath(tenant), &info); err != nil {
		return err
	}
	info.AllowedClusters = clusters
	return c.do(ctx, http.MethodPost, tenantPath(tenant), info, nil)
}

// CreateTenant creates a tenant. One that exists is an [ErrExists].
func (c *Client) CreateTenant(ctx context.Context, tenant string, clusters []string) error {
	info := tenantInfo{AdminRoles: []string{}, AllowedClusters: clusters}
	return as(ErrExists, c.do(ctx, http.MethodPut, tenantPath(tenant), info, nil), http.StatusConflict)
}

func tenantPath(tenant string) string { return "/admin/v2/tenants/" + url.PathEscape(tenant) }
