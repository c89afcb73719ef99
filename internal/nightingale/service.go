package nightingale

import (
	"context"
	"net/http"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/publish"
	"github.com/aviaryhq/aviary/internal/nightingale/tail"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Build wires the service: client, topics, receiver, server. The stop runs in the reverse order:
// the server accepts no more requests, answers those in flight, and then the publishers are flushed
// and closed.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	if cfg.Tail {
		topic := cfg.Topic
		if cfg.TailTopic != "" {
			topic = cfg.TailTopic
		}
		return tail.Build(ctx, rt, cfg.Pulsar, topic)
	}
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)

	rt.TuneMemory(memoryLimit(cfg))
	profile := cfg.Profile
	if format.Find(cfg.Format).ByPartition {
		profile.Routing = messaging.RouteExplicit
	}
	open := func(ctx context.Context, topic string) (publish.Publisher, error) {
		return client.Publisher(ctx, topic, profile)
	}
	m := newMetrics(rt.Metrics, cfg)
	topics := publish.New(rt.Log, cfg.publishing(), publish.NewMetrics(rt.Metrics), client.Unreachable, open)
	topics.ReachFirst(client.Reach)
	receiver, err := newReceiver(rt.Log.Named("receiver"), cfg, m, topics)
	if err != nil {
		return err
	}
	rt.OnStop("receiver", receiver.close)
	rt.OnStop("publishers", topics.Close)
	rt.Go("topics", topics.Run)
	rt.Check("pulsar", topics.Check)
	ln, err := rt.Listen(ctx, "http", "http.listen", cfg.HTTP.Listen)
	if err != nil {
		return err
	}
	server := newServer(cfg, m, receiver.handler)
	current := cfg
	app.OnReload(rt, func(_ context.Context, changed Config) error {
		if err := receiver.reload(current, changed); err != nil {
			return err
		}
		current = changed
		return nil
	})
	rt.ServeWith("http", httpserver.LimitConnections(ln, cfg.Limits.Connections), server,
		httpserver.Serve(rt.Log.Named("http"), server, cfg.HTTP.WebConfigFile))
	return nil
}

// newServer returns the HTTP server for senders.
func newServer(cfg Config, m *metrics, handler http.HandlerFunc) *http.Server {
	return httpserver.NewServer(cfg.Limits.ReadTimeout, cfg.RequestTimeout, httpserver.CountConnections(m.connections), handler)
}
