package sonic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/health"
	"github.com/aviaryhq/aviary/internal/sonic/apply"
	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/outbox"
	"github.com/aviaryhq/aviary/internal/sonic/primaries"
	"github.com/aviaryhq/aviary/internal/sonic/proxy"
	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// clusterTimeout bounds one request about the state of a Redis Cluster to one of its nodes.
const clusterTimeout = time.Second

// primaryTimeout bounds one reply of a primary to calls of functions of the library. A call that takes
// longer is made again, and finds what is done already.
const primaryTimeout = 5 * time.Second

// buildCluster wires what is in front of a Redis Cluster. In a zone that is alone nothing is
// replicated, and the primaries do not have the function library.
func (s *service) buildCluster(ctx context.Context, rt *app.Runtime, b backend) error {
	endpoint, err := s.cfg.proxy(b, rt.Log)
	if err != nil {
		return err
	}
	nodes := cluster.New(cluster.Config{
		Addresses: b.nodes, Username: b.username, Password: b.password, TLS: b.tls, Timeout: min(s.cfg.Redis.ConnectTimeout, clusterTimeout),
	}, rt.Log)
	endpoint.Cluster, endpoint.SplitMSET, endpoint.Replicate = nodes, s.cfg.Redis.SplitMSET, !s.cfg.isAlone()
	if s.proxy, err = proxy.New(endpoint, rt.Log, rt.Metrics); err != nil {
		return err
	}
	s.cluster = &clusterState{cluster: nodes, unreachable: s.proxy.Unreachable}
	nodes.OnChange(func(*cluster.Map) { s.proxy.ClusterChanged() })
	rt.Go("redis cluster", nodes.Run)
	client := func(address string) *redis.Client { return s.cfg.Redis.nodeClient(b, address) }
	if err := awaitCluster(ctx, nodes, b, client, health.New(rt.Log.Named("redis"))); err != nil {
		return err
	}
	if !s.cfg.isAlone() {
		if err := s.replicateCluster(ctx, rt, nodes, b); err != nil {
			return err
		}
	}
	rt.Go("state of the redis cluster", func(ctx context.Context) error {
		return s.cluster.watch(ctx, health.New(rt.Log.Named("redis")), health.New(rt.Log.Named("writes")))
	})
	if err := rt.Metrics.Register(newClusterCollector(s.cluster)); err != nil {
		return err
	}
	rt.Check("redis", func(context.Context) error { return s.cluster.ready() })
	return nil
}

// replicateCluster wires the shipper, an applier for each other zone, and what watches whether
// primaries take writes. The shipper that owns the topic loads the library at all primaries.
func (s *service) replicateCluster(ctx context.Context, rt *app.Runtime, nodes *cluster.Cluster, b backend) error {
	cfg := s.cfg
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	if err := checkNamespace(ctx, client, cfg, rt.Log); err != nil {
		return err
	}
	p := primaries.New(nodes, func(address string) *redis.Client { return cfg.Redis.primaryClient(b, address) })
	rt.OnStop("redis", func(context.Context) error { return p.Close() })
	s.primaries = &primaryStates{primaries: p}
	s.cluster.notReady = s.primaries.notReady
	s.monitor = newOutboxMonitor(cfg.Outbox, s.primaries.measure, rt.Log, s.proxy.SetWriteMode)

	m := apply.NewMetrics(rt.Metrics)
	progress := clusterProgress{zone: cfg.Zone, others: map[string]clusterApplier{}}
	var appliers []*apply.ClusterApplier
	for _, origin := range cfg.zones()[1:] {
		a := apply.NewCluster(cfg.applier(origin, ""), p, client, rt.Log, m)
		appliers, s.appliers, progress.others[origin] = append(appliers, a), append(s.appliers, a), a
	}
	shipper := outbox.NewCluster(cfg.clusterShipper(progress), p, client, rt.Log, outbox.NewMetrics(rt.Metrics))
	s.shipper = shipper
	rt.Go("shipper", shipper.Run)
	for i, a := range appliers {
		rt.Go("applier of zone "+cfg.zones()[i+1], a.Run)
	}
	rt.Go("outbox", s.monitor.run)
	if err := rt.Metrics.Register(newCollector(s)); err != nil {
		return err
	}
	rt.Check("writes", s.checkClusterWrites)
	return nil
}

// nodeClient returns a client of one node of a Redis Cluster. It sends nothing twice, and follows no
// redirection.
func (c RedisConfig) nodeClient(b backend, address string) *redis.Client {
	return redis.NewClient(c.nodeOptions(b, address))
}

func (c RedisConfig) nodeOptions(b backend, address string) *redis.Options {
	return &redis.Options{
		Addr: address, Username: b.username, Password: b.password, TLSConfig: b.tls, DialTimeout: c.ConnectTimeout,
		DialerRetries: 1, MaxRetries: -1, ClientName: "sonic", Protocol: 2, DisableIdentity: true,
	}
}

// primaryClient is nodeClient for calls of functions of the library. A primary that cannot be reached
// must not hold up those that can.
func (c RedisConfig) primaryClient(b backend, address string) *redis.Client {
	o := c.nodeOptions(b, address)
	o.DialTimeout = min(o.DialTimeout, clusterTimeout)
	o.ReadTimeout, o.WriteTimeout, o.ContextTimeoutEnabled = primaryTimeout, primaryTimeout, true
	return redis.NewClient(o)
}

// awaitCluster waits until a primary of the cluster answers that can be the backend. Primaries that
// cannot be reached do not hold up the start: the other ones serve their slots. One that cannot be
// the backend ends the wait with errUnsuitable.
func awaitCluster(ctx context.Context, c *cluster.Cluster, b backend, client func(address string) *redis.Client, state *health.State) error {
	var pause backoff.Backoff
	for {
		m, err := c.Map(), c.Err()
		switch {
		case m != nil:
			err = checkPrimaries(ctx, m, client)
		case err != nil:
			err = errors.Join(err, checkEnabled(ctx, b.nodes, client))
		}
		if errors.Is(err, errUnsuitable) {
			state.Forget()
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		state.Set(err)
		if m != nil && err == nil {
			return nil
		}
		pause.Wait(ctx)
	}
}

// checkPrimaries returns nil if at least one primary answers and all that answer can be the
// backend.
func checkPrimaries(ctx context.Context, m *cluster.Map, client func(address string) *redis.Client) error {
	addresses := addressesOf(m)
	if len(addresses) == 0 {
		return errors.New("no primary of the Redis Cluster has slots")
	}
	unsuitable, unknown := checkNodes(ctx, addresses, client, true)
	if len(unsuitable) == 0 && len(unknown) < len(addresses) {
		return nil
	}
	return errors.Join(append(unsuitable, unknown...)...)
}

// addressesOf returns the addresses of the primaries of a map.
func addressesOf(m *cluster.Map) (addresses []string) {
	for _, p := range m.Primaries() {
		addresses = append(addresses, p.Address)
	}
	return addresses
}

// checkEnabled returns errUnsuitable if one of the nodes cannot be part of the backend, such as a
// Redis without a cluster. Nothing else is an error: who follows the cluster says why it gets no
// answer.
func checkEnabled(ctx context.Context, nodes []string, client func(address string) *redis.Client) error {
	unsuitable, _ := checkNodes(ctx, nodes, client, false)
	return errors.Join(unsuitable...)
}

// checkNodes checks nodes at the same time: see checkNode. It returns the errors that are
// errUnsuitable, and the other ones.
func checkNodes(ctx context.Context, addresses []string, client func(address string) *redis.Client, primaries bool) (unsuitable, unknown []error) {
	errs := make([]error, len(addresses))
	var checks sync.WaitGroup
	for i, address := range addresses {
		checks.Go(func() { errs[i] = checkNode(ctx, address, client, primaries) })
	}
	checks.Wait()
	for _, err := range errs {
		switch {
		case errors.Is(err, errUnsuitable):
			unsuitable = append(unsuitable, err)
		case err != nil:
			unknown = append(unknown, err)
		}
	}
	return unsuitable, unknown
}

// checkNode returns errUnsuitable for a node that cannot be part of the backend. With primary a
// replica is an error, too: the map of the cluster is about to change.
func checkNode(ctx context.Context, address string, client func(address string) *redis.Client, primary bool) error {
	db := client(address)
	defer func() { _ = db.Close() }()
	info, err := askInfo(ctx, db)
	if err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	errs := []error{checkServer(info)}
	if info["cluster_enabled"] == "0" {
		errs = append(errs, fmt.Errorf("%w: it is not part of a Redis Cluster: set redis.cluster: false, and one address in redis.url", errUnsuitable))
	}
	if primary && info["role"] != "master" {
		errs = append(errs, replicaError{role: info["role"], host: info["master_host"], port: info["master_port"]})
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%s: %w", address, err)
	}
	return nil
}
