package messaging

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
)

// Topic returns the topic of that name, to manage it: a bare name, tenant/namespace/name, or
// the same behind persistent://. One partition is a topic, too: name-partition-3. It asks
// nothing: the topic need not exist.
func (c *Client) Topic(name string) Topic { return c.admin.Topic(name) }

// Topic manages one topic over the brokers' admin API ([Config].AdminURL), with the client's
// credentials.
type Topic = adminapi.Topic

// CompactionState is how far the last compaction of a topic is.
type CompactionState = adminapi.CompactionState

// The states of compaction.
const (
	CompactionNotRun  = adminapi.CompactionNotRun // the broker that serves the topic knows of none
	CompactionRunning = adminapi.CompactionRunning
	CompactionDone    = adminapi.CompactionDone
	CompactionFailed  = adminapi.CompactionFailed
)

// Subscription manages one subscription of a topic over the brokers' admin API.
type Subscription = adminapi.Subscription

// PeekedMessage is a message that waits in a subscription, as far as the admin API gives it.
type PeekedMessage = adminapi.PeekedMessage

// MaxPeek is the greatest number of messages that one Subscription.Peek returns.
const MaxPeek = adminapi.MaxPeek

// Namespace returns the namespace of that name, tenant/namespace, to manage it. It asks nothing:
// the namespace need not exist.
func (c *Client) Namespace(name string) Namespace { return c.admin.Namespace(name) }

// Namespace manages one namespace over the brokers' admin API.
type Namespace = adminapi.Namespace

// Retention is how much of the acknowledged messages a namespace keeps. Messages beyond either
// bound are removed.
type Retention = adminapi.Retention

// Unlimited is a bound of a Retention that bounds nothing.
const Unlimited = adminapi.Unlimited

// BacklogQuota bounds the messages that the subscriptions of a topic have not acknowledged.
type BacklogQuota = adminapi.BacklogQuota

// BacklogPolicy is what brokers do about a topic whose backlog has reached its quota.
type BacklogPolicy = adminapi.BacklogPolicy

// What brokers do: publishing waits, publishers get an error, or the slowest subscriptions lose
// their oldest messages.
const (
	HoldProducers   = adminapi.HoldProducers
	RefuseProducers = adminapi.RefuseProducers
	EvictBacklog    = adminapi.EvictBacklog
)

// Tenant returns the tenant of that name, to manage it. It asks nothing: the tenant need not exist.
func (c *Client) Tenant(name string) Tenant { return c.admin.Tenant(name) }

// Tenant manages one tenant over the brokers' admin API.
type Tenant = adminapi.Tenant

// ClusterName returns the name of this cluster. That needs a superuser.
func (c *Client) ClusterName(ctx context.Context) (string, error) { return c.admin.ClusterName(ctx) }

// Clusters lists the names of the clusters that this one knows, its own too.
func (c *Client) Clusters(ctx context.Context) ([]string, error) { return c.admin.Clusters(ctx) }
