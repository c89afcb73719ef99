package messaging

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/admin"
)

// Namespace manages one namespace over the brokers' admin API. [Client.Namespace] makes one. It is
// a plain value, and it is safe for concurrent use. [Topic] says what limits and errors the methods
// have in common.
type Namespace struct {
	api  *API
	name string
}

// Namespace returns the namespace of that name, tenant/namespace, to manage it. It asks nothing:
// the namespace need not exist.
func (c *API) Namespace(name string) Namespace { return Namespace{api: c, name: name} }

// Name is the namespace's name: tenant/namespace.
func (n Namespace) Name() string { return n.name }

// TopicInfo is a topic of a namespace.
type TopicInfo struct {
	Name       string // persistent://tenant/namespace/name
	Partitions int    // 0: without partitions
}

// Topics lists the persistent topics of the namespace by name, without those that Pulsar keeps for
// itself. A topic with partitions is there once. The list is bounded by 4 MiB of names.
func (n Namespace) Topics(ctx context.Context) (topics []TopicInfo, err error) {
	err = n.manage(ctx, "topics of", func(ctx context.Context, a *admin.Client) error {
		found, err := a.Topics(ctx, n.name)
		for _, t := range found {
			topics = append(topics, TopicInfo(t))
		}
		return err
	})
	return topics, err
}

// Create creates the namespace, in this cluster only. Its tenant must exist. One that exists is
// [ErrExists] and stays as it is.
func (n Namespace) Create(ctx context.Context) error {
	return n.manage(ctx, "create", func(ctx context.Context, a *admin.Client) error { return a.CreateNamespace(ctx, n.name) })
}

// ReplicationClusters returns the clusters that have the namespace, this one too. Messages that are
// published in one of them are replicated to all others.
func (n Namespace) ReplicationClusters(ctx context.Context) (clusters []string, err error) {
	err = n.manage(ctx, "replication clusters of", func(ctx context.Context, a *admin.Client) (err error) {
		clusters, err = a.ReplicationClusters(ctx, n.name)
		return err
	})
	return clusters, err
}

// SetReplicationClusters changes the clusters that have the namespace. The clusters must know each
// other, and the tenant must allow them. A cluster that is left out may delete its topics.
func (n Namespace) SetReplicationClusters(ctx context.Context, clusters []string) error {
	return n.manage(ctx, "set replication clusters of", func(ctx context.Context, a *admin.Client) error {
		return a.SetReplicationClusters(ctx, n.name, clusters)
	})
}

// Unlimited is a bound of a [Retention] that bounds nothing.
const Unlimited = -1

// Retention is how much of what is acknowledged a namespace keeps: what either bound wants removed
// is removed. Zero in both keeps nothing.
type Retention struct {
	Time time.Duration // in whole minutes; [Unlimited]: as long as Size allows
	Size int64         // of each partition in bytes, in whole MiB; [Unlimited]: as much as Time allows
}

// Retention returns the namespace's own retention. When it has none, set is false and the brokers'
// default applies.
func (n Namespace) Retention(ctx context.Context) (r Retention, set bool, err error) {
	err = n.manage(ctx, "retention of", func(ctx context.Context, a *admin.Client) error {
		own, err := a.Retention(ctx, n.name)
		if err != nil || own == nil {
			return err
		}
		r, set = Retention{Time: Unlimited, Size: Unlimited}, true
		if own.Minutes >= 0 {
			r.Time = time.Duration(own.Minutes) * time.Minute
		}
		if own.Megabytes >= 0 {
			r.Size = int64(own.Megabytes) << 20
		}
		return nil
	})
	return r, set, err
}

// SetRetention gives the namespace a retention of its own. Bounds are rounded up to whole minutes
// and MiB. Pulsar wants both to be zero, or none.
func (n Namespace) SetRetention(ctx context.Context, r Retention) error {
	return n.manage(ctx, "set retention of", func(ctx context.Context, a *admin.Client) error {
		if r.Time < Unlimited || r.Size < Unlimited {
			return errors.New("a bound must be >= 0, or Unlimited")
		}
		if (r.Time == 0) != (r.Size == 0) {
			return errors.New("either both bounds must be 0, or none")
		}
		own := admin.Retention{Minutes: Unlimited, Megabytes: Unlimited}
		if r.Time != Unlimited {
			own.Minutes = int((r.Time + time.Minute - 1) / time.Minute)
		}
		if r.Size != Unlimited {
			own.Megabytes = int((r.Size + 1<<20 - 1) >> 20)
		}
		return a.SetRetention(ctx, n.name, own)
	})
}

// Deduplication returns whether brokers deduplicate what publishers send to the namespace's topics.
// When the namespace has no setting of its own, set is false and the brokers' default applies.
func (n Namespace) Deduplication(ctx context.Context) (on, set bool, err error) {
	err = n.manage(ctx, "deduplication of", func(ctx context.Context, a *admin.Client) error {
		own, err := a.Deduplication(ctx, n.name)
		if own != nil {
			on, set = *own, true
		}
		return err
	})
	return on, set, err
}

// SetDeduplication gives the namespace a setting of its own. Topics take it over shortly after.
func (n Namespace) SetDeduplication(ctx context.Context, on bool) error {
	return n.manage(ctx, "set deduplication of", func(ctx context.Context, a *admin.Client) error {
		return a.SetDeduplication(ctx, n.name, on)
	})
}

// SubscriptionExpiration returns after what time without consumers a subscription of the namespace
// is deleted; 0: never. When the namespace has no setting of its own, set is false and the brokers'
// default applies.
func (n Namespace) SubscriptionExpiration(ctx context.Context) (after time.Duration, set bool, err error) {
	err = n.manage(ctx, "subscription expiration of", func(ctx context.Context, a *admin.Client) error {
		own, err := a.SubscriptionExpiration(ctx, n.name)
		if own != nil {
			after, set = time.Duration(*own)*time.Minute, true
		}
		return err
	})
	return after, set, err
}

// SetSubscriptionExpiration gives the namespace a setting of its own. The time is rounded up to
// whole minutes.
func (n Namespace) SetSubscriptionExpiration(ctx context.Context, after time.Duration) error {
	return n.manage(ctx, "set subscription expiration of", func(ctx context.Context, a *admin.Client) error {
		return a.SetSubscriptionExpiration(ctx, n.name, int((after+time.Minute-1)/time.Minute))
	})
}

func (n Namespace) manage(ctx context.Context, what string, do func(context.Context, *admin.Client) error) error {
	return n.api.manage(ctx, what+" namespace "+n.name, func(ctx context.Context, a *admin.Client) error {
		if tenant, name, _ := strings.Cut(n.name, "/"); tenant == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("the name must be tenant/namespace, got %q", n.name)
		}
		return do(ctx, a)
	})
}
