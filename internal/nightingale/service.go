package nightingale

import (
	"context"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Build wires the service: client, sink, receiver, server. The stop runs backwards:
// no more requests, those in flight answered, the publisher flushed and closed.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)

	out := newSink(rt.Log, cfg.Topic, func(ctx context.Context) (publisher, error) {
		return client.Publisher(ctx, cfg.Topic, cfg.Profile)
	})
	rt.OnStop("publisher", out.close)
	rt.Go("sink", out.run)
	rt.Check("pulsar", out.check)

	in := newReceiver(rt.Log.Named("receiver"), cfg, newMetrics(rt.Metrics), out.publish)
	ln, err := rt.Listen(ctx, "http", cfg.HTTP.Listen)
	if err != nil {
		return err
	}
	rt.Serve("http", ln, newServer(in.handler(), cfg.Limits))
	return nil
}
