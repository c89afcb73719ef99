package adminapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// Namespace manages one namespace over the brokers' admin API. [Client.Namespace] makes one. It is
// a plain value, and it is safe for concurrent use. [Topic] says what limits and errors the methods
// have in common.
type Namespace struct {
	api  *API
	name string
}

// Namespace is the client's method of that name.
func (c *API) Namespace(name string) Namespace { return Namespace{api: c, name: name} }

// Name is the namespace's name: tenant/namespace.
func (n Namespace) Name() string { return n.name }

// Create creates the namespace, in this cluster only. Its tenant must exist. One that exists is
// [ErrExists] and stays as it is.
func (n Namespace) Create(ctx context.Context) error {
	return n.manage(ctx, "create", func(ctx context.Context, a *client) error {
		return as(ErrExists, a.do(ctx, http.MethodPut, namespacePath("namespaces", n.name), nil, nil), http.StatusConflict)
	})
}

// ReplicationClusters returns the clusters that have the namespace, this one too. Messages that are
// published in one of them are replicated to all others.
func (n Namespace) ReplicationClusters(ctx context.Context) ([]string, error) {
	clusters, _, err := policy[[]string](ctx, n, "replication clusters", "replication")
	return clusters, err
}

// SetReplicationClusters changes the clusters that have the namespace. The clusters must know each
// other, and the tenant must allow them. A cluster that is left out may delete its topics.
func (n Namespace) SetReplicationClusters(ctx context.Context, clusters []string) error {
	return n.setPolicy(ctx, "replication clusters", "replication", clusters)
}

// Unlimited is a bound of a [Retention] that bounds nothing.
const Unlimited = -1

// Retention is how much of the acknowledged messages a namespace keeps. Messages beyond either
// bound are removed.
type Retention struct {
	Time time.Duration // in whole minutes; [Unlimited]: as long as Size allows
	Size int64         // of each partition in bytes, in whole MiB; [Unlimited]: as much as Time allows
}

// adminRetention is a [Retention] in the admin API. -1 means no limit.
type adminRetention struct {
	Minutes   int `json:"retentionTimeInMinutes"`
	Megabytes int `json:"retentionSizeInMB"`
}

// Retention returns the namespace's own retention. When it has none, set is false and the brokers'
// default applies.
func (n Namespace) Retention(ctx context.Context) (r Retention, set bool, err error) {
	own, set, err := policy[adminRetention](ctx, n, "retention", "retention")
	if !set {
		return Retention{}, false, err
	}
	r = Retention{Time: Unlimited, Size: Unlimited}
	if own.Minutes >= 0 {
		r.Time = time.Duration(own.Minutes) * time.Minute
	}
	if own.Megabytes >= 0 {
		r.Size = int64(own.Megabytes) << 20
	}
	return r, true, nil
}

// SetRetention gives the namespace its own retention. Bounds are rounded up to whole minutes
// and MiB. Pulsar wants both to be zero, or none.
func (n Namespace) SetRetention(ctx context.Context, r Retention) error {
	own := adminRetention{Minutes: Unlimited, Megabytes: Unlimited}
	if r.Time != Unlimited {
		own.Minutes = wholeMinutes(r.Time)
	}
	if r.Size != Unlimited {
		own.Megabytes = int((r.Size + 1<<20 - 1) >> 20)
	}
	return n.manage(ctx, "set retention of", func(ctx context.Context, a *client) error {
		if r.Time < Unlimited || r.Size < Unlimited {
			return errors.New("a bound must be >= 0, or Unlimited")
		}
		if (r.Time == 0) != (r.Size == 0) {
			return errors.New("either both bounds must be 0, or none")
		}
		return a.setPolicy(ctx, n.name, "retention", own)
	})
}

func wholeMinutes(d time.Duration) int { return int((d + time.Minute - 1) / time.Minute) }

// Deduplication returns whether brokers deduplicate what publishers send to the namespace's topics.
// When the namespace has no setting, set is false and the brokers' default applies.
func (n Namespace) Deduplication(ctx context.Context) (on, set bool, err error) {
	return policy[bool](ctx, n, "deduplication", "deduplication")
}

// SetDeduplication gives the namespace its own setting. Topics take it over shortly after.
func (n Namespace) SetDeduplication(ctx context.Context, on bool) error {
	return n.setPolicy(ctx, "deduplication", "deduplication", on)
}

// SubscriptionExpiration returns after what time without consumers a subscription of the namespace
// is deleted; 0: never. When the namespace has no setting, set is false and the brokers'
// default applies.
func (n Namespace) SubscriptionExpiration(ctx context.Context) (after time.Duration, set bool, err error) {
	minutes, set, err := policy[int](ctx, n, "subscription expiration", "subscriptionExpirationTime")
	return time.Duration(minutes) * time.Minute, set, err
}

// SetSubscriptionExpiration gives the namespace its own setting. The time is rounded up to
// whole minutes.
func (n Namespace) SetSubscriptionExpiration(ctx context.Context, after time.Duration) error {
	return n.setPolicy(ctx, "subscription expiration", "subscriptionExpirationTime", wholeMinutes(after))
}

// BacklogPolicy is what brokers do about a topic whose backlog has reached its quota.
type BacklogPolicy string

const (
	// HoldProducers has publishing wait.
	HoldProducers BacklogPolicy = "producer_request_hold"
	// RefuseProducers has publishers get an error.
	RefuseProducers BacklogPolicy = "producer_exception"
	// EvictBacklog has the slowest subscriptions lose their oldest messages.
	EvictBacklog BacklogPolicy = "consumer_backlog_eviction"
)

// BacklogQuota bounds what the subscriptions of a topic have not acknowledged.
type BacklogQuota struct {
	Bytes  int64         `json:"limitSize"` // of each partition
	Policy BacklogPolicy `json:"policy"`
}

// storageQuota is the type of quota that counts bytes.
const storageQuota = "destination_storage"

// BacklogQuota returns the namespace's own quota. When it has none, set is false and the brokers'
// default applies.
func (n Namespace) BacklogQuota(ctx context.Context) (q BacklogQuota, set bool, err error) {
	quotas, _, err := policy[map[string]*BacklogQuota](ctx, n, "backlog quota", "backlogQuotaMap")
	if own := quotas[storageQuota]; own != nil {
		return *own, true, nil
	}
	return BacklogQuota{}, false, err
}

// SetBacklogQuota gives the namespace its own quota. Pulsar wants it to be below the size of
// the namespace's [Retention], when that bounds both time and size.
func (n Namespace) SetBacklogQuota(ctx context.Context, q BacklogQuota) error {
	if q.Bytes < 0 {
		return fmt.Errorf("messaging: set backlog quota of namespace %s: the size must be >= 0, got %d", n.name, q.Bytes)
	}
	return n.setPolicy(ctx, "backlog quota", "backlogQuota?backlogQuotaType="+storageQuota, q)
}

// policy returns a policy of n, and whether n has one of its own: the answer is empty otherwise.
// name is the admin API's.
func policy[T any](ctx context.Context, n Namespace, what, name string) (own T, set bool, err error) {
	v, err := fetch(ctx, n, what+" of", func(ctx context.Context, a *client) (v *T, err error) {
		_, data, err := a.ask(ctx, http.MethodGet, namespacePath("namespaces", n.name)+"/"+name, nil, maxAnswer)
		if err == nil && len(data) > 0 {
			err = a.decode(data, &v)
		}
		return v, err
	})
	if err != nil || v == nil {
		return own, false, err
	}
	return *v, true, nil
}

func (n Namespace) setPolicy(ctx context.Context, what, name string, v any) error {
	return n.manage(ctx, "set "+what+" of", func(ctx context.Context, a *client) error {
		return a.setPolicy(ctx, n.name, name, v)
	})
}

func (c *client) setPolicy(ctx context.Context, namespace, name string, v any) error {
	return c.do(ctx, http.MethodPost, namespacePath("namespaces", namespace)+"/"+name, v, nil)
}

// namespacePath is where the admin API has a kind of things of a namespace, tenant/namespace.
func namespacePath(kind, namespace string) string {
	tenant, name, _ := strings.Cut(namespace, "/")
	return "/admin/v2/" + kind + "/" + url.PathEscape(tenant) + "/" + url.PathEscape(name)
}

func (n Namespace) manage(ctx context.Context, what string, do func(context.Context, *client) error) error {
	return n.api.manage(ctx, what+" namespace "+n.name, func(ctx context.Context, a *client) error {
		if tenant, name, _ := strings.Cut(n.name, "/"); tenant == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("the name must be tenant/namespace, got %q", n.name)
		}
		return do(ctx, a)
	})
}
