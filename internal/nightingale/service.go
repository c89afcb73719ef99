package nightingale

import (
	"context"
	"net/http"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Build wires the service: client, sink, receiver, server. The stop runs backwards:
// no more requests, those in flight answered, the publisher flushed and closed.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	if cfg.Tail {
		return buildTail(ctx, rt, cfg)
	}
	if err := cfg.HTTP.check(); err != nil {
		return err
	}
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)

	rt.TuneMemory(memoryLimit(cfg))
	profile := cfg.Profile
	if findFormat(cfg.Format).byPartition {
		profile.Routing = messaging.RouteExplicit
	}
	open := func(ctx context.Context, topic string) (publisher, error) {
		return client.Publisher(ctx, topic, profile)
	}
	m := newMetrics(rt.Metrics)
	m.limits(cfg)
	out := newTopics(rt.Log, cfg, newTopicMetrics(rt.Metrics), newAcknowledging(cfg, rt.Log, m), client.Unreachable, open)
	out.reachFirst(client.Reach)
	in := newReceiver(rt.Log.Named("receiver"), cfg, m, out)
	if err := in.take(cfg); err != nil {
		return err
	}
	rt.OnStop("receiver", in.close)
	rt.OnStop("publishers", out.close)
	rt.Go("topics", out.run)
	rt.Check("pulsar", out.check)
	ln, err := rt.Listen(ctx, "http", "http.listen", cfg.HTTP.Listen)
	if err != nil {
		return err
	}
	server := newServer(cfg, m, in.guard(in.handler()))
	inForce := cfg
	app.OnReload(rt, func(_ context.Context, changed Config) error {
		if err := in.change(inForce, changed); err != nil {
			return err
		}
		inForce = changed
		return nil
	})
	rt.ServeWith("http", door.LimitConnections(ln, cfg.Limits.Connections), server, door.Serve(rt.Log.Named("http"), server, cfg.HTTP.WebConfigFile))
	return nil
}

// newServer is the server for senders.
func newServer(cfg Config, m *metrics, handler http.Handler) *http.Server {
	return door.NewServer(cfg.Limits.ReadTimeout, cfg.RequestTimeout, m.connState, handler)
}
