package admin

import (
	"context"
	"net/http"
)

// Retention is what a namespace keeps of acknowledged messages, as the API has it: -1 has no limit.
type Retention struct {
	Minutes   int `json:"retentionTimeInMinutes"`
	Megabytes int `json:"retentionSizeInMB"`
}

// Retention returns a namespace's own retention, nil when it has none.
func (c *Client) Retention(ctx context.Context, namespace string) (*Retention, error) {
	var r *Retention
	err := c.getPolicy(ctx, namespace, "retention", &r)
	return r, err
}

// SetRetention gives a namespace a retention of its own.
func (c *Client) SetRetention(ctx context.Context, namespace string, r Retention) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/retention", r, nil)
}

// Deduplication returns a namespace's own setting, nil when it has none.
func (c *Client) Deduplication(ctx context.Context, namespace string) (*bool, error) {
	var on *bool
	err := c.getPolicy(ctx, namespace, "deduplication", &on)
	return on, err
}

// SetDeduplication gives a namespace a setting of its own.
func (c *Client) SetDeduplication(ctx context.Context, namespace string, on bool) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/deduplication", on, nil)
}

// CreateNamespace creates a namespace in this cluster only. One that exists is an [ErrExists].
func (c *Client) CreateNamespace(ctx context.Context, namespace string) error {
	err := c.do(ctx, http.MethodPut, namespacePath("namespaces", namespace), nil, nil)
	return as(ErrExists, err, http.StatusConflict)
}

// ReplicationClusters returns the clusters that have a namespace.
func (c *Client) ReplicationClusters(ctx context.Context, namespace string) ([]string, error) {
	var clusters []string
	err := c.getPolicy(ctx, namespace, "replication", &clusters)
	return clusters, err
}

// SetReplicationClusters changes them.
func (c *Client) SetReplicationClusters(ctx context.Context, namespace string, clusters []string) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/replication", clusters, nil)
}

// BacklogQuota bounds the backlog of each topic of a namespace by its size, as the API has it.
type BacklogQuota struct {
	Bytes  int64  `json:"limitSize"`
	Policy string `json:"policy"`
}

// storageQuota is the type of quota that counts bytes.
const storageQuota = "destination_storage"

// BacklogQuota returns a namespace's own quota, nil when it has none.
func (c *Client) BacklogQuota(ctx context.Context, namespace string) (*BacklogQuota, error) {
	var quotas map[string]*BacklogQuota
	err := c.getPolicy(ctx, namespace, "backlogQuotaMap", &quotas)
	return quotas[storageQuota], err
}

// SetBacklogQuota gives a namespace a quota of its own.
func (c *Client) SetBacklogQuota(ctx context.Context, namespace string, q BacklogQuota) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/backlogQuota?backlogQuotaType="+storageQuota, q, nil)
}

// SubscriptionExpiration returns after how many minutes without consumers a subscription is
// deleted, 0 for never, nil when the namespace has no setting of its own.
func (c *Client) SubscriptionExpiration(ctx context.Context, namespace string) (*int, error) {
	var minutes *int
	err := c.getPolicy(ctx, namespace, "subscriptionExpirationTime", &minutes)
	return minutes, err
}

// SetSubscriptionExpiration gives a namespace a setting of its own.
func (c *Client) SetSubscriptionExpiration(ctx context.Context, namespace string, minutes int) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/subscriptionExpirationTime", minutes, nil)
}

// getPolicy decodes a policy of a namespace into out, and leaves it as it is when the namespace has
// none of its own: the answer then is empty.
func (c *Client) getPolicy(ctx context.Context, namespace, policy string, out any) error {
	_, data, err := c.ask(ctx, http.MethodGet, namespacePath("namespaces", namespace)+"/"+policy, nil, maxAnswer)
	if err != nil || len(data) == 0 {
		return err
	}
	return c.decode(data, out)
}
