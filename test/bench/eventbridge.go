package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// eventbridgeBench is what the parts with the real binary share.
type eventbridgeBench struct {
	*measure.Report
	dir     string // for the binary and its log
	program string
	near    *servers.Broker
}

// eventbridgeScenario measures the matcher alone, and the real binary with all three roles on a
// real broker: events taken, and events delivered to a webhook.
func eventbridgeScenario(ctx context.Context, r *measure.Report) (err error) {
	if r.Wants("matcher") {
		if err := matcherPart(ctx, r); err != nil {
			return fmt.Errorf("matcher: %w", err)
		}
	}
	b := &eventbridgeBench{Report: r}
	parts := []struct {
		name string
		run  func(context.Context) error
	}{
		{"ingest", b.ingest}, {"delivery", b.delivery}, {"latency", b.latency}, {"size", b.size},
	}
	defer func() { err = errors.Join(err, b.close()) }()
	for _, part := range parts {
		if !r.Wants(part.name) {
			continue
		}
		if err := b.prepare(ctx); err != nil {
			return err
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	return nil
}

// prepare builds Eventbridge and starts a broker, once.
func (b *eventbridgeBench) prepare(ctx context.Context) (err error) {
	if b.near != nil {
		return nil
	}
	if b.dir, err = os.MkdirTemp("", "aviary-bench-"); err != nil {
		return err
	}
	b.program = filepath.Join(b.dir, "eventbridge")
	if err := servers.Build(ctx, "eventbridge", b.program); err != nil {
		return err
	}
	b.near, err = servers.StartBroker(ctx, servers.Options{Conf: map[string]string{"brokerDeduplicationEnabled": "true"}})
	return err
}

func (b *eventbridgeBench) close() error {
	if b.near != nil {
		b.near.Stop()
	}
	if b.dir == "" {
		return nil
	}
	return os.RemoveAll(b.dir)
}

// bridge is a running Eventbridge.
type bridge struct {
	*servers.Server
	api string
}

// start starts Eventbridge with these roles (separated by commas), its topics in the namespace, and
// waits until it is ready.
func (b *eventbridgeBench) start(ctx context.Context, namespace, roles string) (*bridge, error) {
	listen, admin, err := servers.TwoPorts()
	if err != nil {
		return nil, err
	}
	s, err := servers.Start(b.program, filepath.Join(b.dir, "eventbridge.log"), []string{
		"EVENTBRIDGE_PULSAR_URL=" + b.near.Url, "EVENTBRIDGE_PULSAR_ADMIN_URL=" + b.near.Admin,
		"EVENTBRIDGE_ROLES=" + roles, "EVENTBRIDGE_TOPICS_NAMESPACE=" + namespace, "EVENTBRIDGE_TARGETS_ALLOW=127.0.0.0/8",
		"EVENTBRIDGE_HTTP_LISTEN=" + listen, "EVENTBRIDGE_ADMIN_LISTEN=" + admin,
	})
	if err != nil {
		return nil, err
	}
	s.Admin = "http://" + admin
	return &bridge{s, "http://" + listen}, s.Await(ctx, s.Admin+"/-/ready")
}

// namespace makes a namespace, so that each run has topics and a registry of its own.
func (b *eventbridgeBench) namespace(ctx context.Context, name string) (string, error) {
	ns := "public/bench-" + name
	return ns, servers.Put(ctx, b.near.Admin+"/admin/v2/namespaces/"+ns, struct{}{})
}

// bus makes a bus with as many partitions.
func (s *bridge) bus(ctx context.Context, name string, partitions int) error {
	return servers.Put(ctx, s.api+"/v1/buses/"+name, map[string]any{"partitions": partitions})
}

// subscriber makes one whose rule matches every event of the benchmark.
func (s *bridge) subscriber(ctx context.Context, bus, name, order, url string, concurrency int) error {
	return servers.Put(ctx, s.api+"/v1/buses/"+bus+"/subscribers/"+name, map[string]any{
		"order":    order,
		"rules":    []any{map[string]any{"name": "placed", "pattern": map[string]any{"type": []string{"order.placed"}}}},
		"target":   map[string]any{"webhook": map[string]any{"url": url}},
		"delivery": map[string]any{"concurrency": concurrency},
	})
}

// profiled writes profiles of the service during f, where profiles are asked for and this is the
// turn for it.
func (b *eventbridgeBench) profiled(ctx context.Context, s *bridge, name string, now bool, f func() error) error {
	if b.Profile == "" || !now {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- s.Profiles(ctx, filepath.Join(b.Profile, "eventbridge-"+name)) }()
	return errors.Join(f(), <-done)
}
