package messaging

import (
	"context"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/adminapi"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/consume"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/read"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/redrive"
)

// EnsureSubscription documented.
func (c *Client) EnsureSubscription(ctx context.Context, topic, subscription string, at record.StartAt) error {
	return c.cluster.EnsureSubscription(ctx, topic, subscription, at)
}
func (c *Client) Partitions(ctx context.Context, topic string) ([]string, error) {
	return c.cluster.Partitions(ctx, topic)
}
func (c *Client) Last(ctx context.Context, topic string) (*record.Delivery, error) {
	return c.readers.Last(ctx, topic)
}
func (c *Client) Reader(ctx context.Context, cfg read.ReaderConfig) (*read.Reader, error) {
	return c.readers.Open(ctx, cfg)
}
func (c *Client) Publisher(ctx context.Context, topic string, profile publish.Profile) (*publish.Publisher, error) {
	return c.publishers.Open(ctx, topic, profile)
}
func (c *Client) EntryWriter(ctx context.Context, topic string, cfg publish.EntryWriterConfig) (*publish.EntryWriter, error) {
	return c.publishers.OpenWriter(ctx, topic, cfg)
}
func (c *Client) Consumer(cfg consume.ConsumerConfig, opts ...consume.ConsumerOption) (*consume.Consumer, error) {
	return c.consumers.New(cfg, opts...)
}
func (c *Client) Redrive(ctx context.Context, cfg redrive.RedriveConfig) (redrive.RedriveResult, error) {
	return redrive.Redrive(ctx, c.publishers, cfg)
}
func (c *Client) Topic(name string) adminapi.Topic                { return c.admin.Topic(name) }
func (c *Client) Namespace(name string) adminapi.Namespace        { return c.admin.Namespace(name) }
func (c *Client) Tenant(name string) adminapi.Tenant              { return c.admin.Tenant(name) }
func (c *Client) ClusterName(ctx context.Context) (string, error) { return c.admin.ClusterName(ctx) }
func (c *Client) Clusters(ctx context.Context) ([]string, error)  { return c.admin.Clusters(ctx) }
