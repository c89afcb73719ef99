package messaging

import "context"

// EnsureSubscription documented.
func (c *Client) EnsureSubscription(ctx context.Context, topic, subscription string, at StartAt) error {
	return c.cluster.EnsureSubscription(ctx, topic, subscription, at)
}
func (c *Client) Partitions(ctx context.Context, topic string) ([]string, error) {
	return c.cluster.Partitions(ctx, topic)
}
func (c *Client) Last(ctx context.Context, topic string) (*Delivery, error) {
	return c.readers.Last(ctx, topic)
}
func (c *Client) Reader(ctx context.Context, cfg ReaderConfig) (*Reader, error) {
	return c.readers.Open(ctx, cfg)
}
func (c *Client) Publisher(ctx context.Context, topic string, profile Profile) (*Publisher, error) {
	return c.publishers.Open(ctx, topic, profile)
}
func (c *Client) EntryWriter(ctx context.Context, topic string, cfg EntryWriterConfig) (*EntryWriter, error) {
	return c.publishers.OpenWriter(ctx, topic, cfg)
}
func (c *Client) Consumer(cfg ConsumerConfig, opts ...ConsumerOption) (*Consumer, error) {
	return c.consumers.New(cfg, opts...)
}
func (c *Client) Redrive(ctx context.Context, cfg RedriveConfig) (RedriveResult, error) {
	return Redrive(ctx, c.publishers, cfg)
}
func (c *Client) Topic(name string) Topic                         { return c.admin.Topic(name) }
func (c *Client) Namespace(name string) Namespace                 { return c.admin.Namespace(name) }
func (c *Client) Tenant(name string) Tenant                       { return c.admin.Tenant(name) }
func (c *Client) ClusterName(ctx context.Context) (string, error) { return c.admin.ClusterName(ctx) }
func (c *Client) Clusters(ctx context.Context) ([]string, error)  { return c.admin.Clusters(ctx) }
