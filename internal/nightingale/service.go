package nightingale

import (
	"context"
	"net/http"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Build wires the service: client, sink, receiver, server. The stop runs backwards:
// no more requests, those in flight answered, the publisher flushed and closed.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	collectLessOften(cfg)
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)

	profile := cfg.Profile
	if cfg.Format == packedFormat {
		profile.Routing = messaging.RouteExplicit // the format groups series by partition
	}
	open := func(ctx context.Context, topic string) (publisher, error) {
		return client.Publisher(ctx, topic, profile)
	}
	in := newReceiver(rt.Log.Named("receiver"), cfg, newMetrics(rt.Metrics), nil)
	if t, _ := parseTemplate(cfg.Topic); t.static() {
		out := newSink(rt.Log, cfg.Topic, func(ctx context.Context) (publisher, error) { return open(ctx, cfg.Topic) })
		rt.OnStop("publisher", out.close)
		rt.Go("sink", out.run)
		rt.Check("pulsar", out.check)
		in.publish, in.partitions = out.publish, out.partitions
	} else {
		out := newTopics(rt.Log, cfg, newTopicMetrics(rt.Metrics), open)
		rt.OnStop("publishers", out.close)
		rt.Go("topics", out.run)
		rt.Check("pulsar", out.check)
		in.topics = out
	}
	ln, err := rt.Listen(ctx, "http", cfg.HTTP.Listen)
	if err != nil {
		return err
	}
	rt.Serve("http", ln, &http.Server{
		Handler:           in.handler(),
		ReadHeaderTimeout: cfg.Limits.ReadTimeout,
		MaxHeaderBytes:    64 << 10,
	})
	return nil
}
