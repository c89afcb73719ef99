package messaging

import (
	"context"
	"fmt"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
)

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
	Bytes  int64 // of each partition
	Policy BacklogPolicy
}

// BacklogQuota returns the namespace's own quota. When it has none, set is false and the brokers'
// default applies.
func (n Namespace) BacklogQuota(ctx context.Context) (q BacklogQuota, set bool, err error) {
	err = n.manage(ctx, "backlog quota of", func(ctx context.Context, a *admin.Client) error {
		own, err := a.BacklogQuota(ctx, n.name)
		if own != nil {
			q, set = BacklogQuota{Bytes: own.Bytes, Policy: BacklogPolicy(own.Policy)}, true
		}
		return err
	})
	return q, set, err
}

// SetBacklogQuota gives the namespace a quota of its own. Pulsar wants it to be below the size of
// the namespace's [Retention], when that bounds both time and size.
func (n Namespace) SetBacklogQuota(ctx context.Context, q BacklogQuota) error {
	return n.manage(ctx, "set backlog quota of", func(ctx context.Context, a *admin.Client) error {
		if q.Bytes < 0 {
			return fmt.Errorf("the size must be >= 0, got %d", q.Bytes)
		}
		return a.SetBacklogQuota(ctx, n.name, admin.BacklogQuota{Bytes: q.Bytes, Policy: string(q.Policy)})
	})
}
