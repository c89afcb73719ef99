package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// sonicClusterScenario compares Sonic in front of Redis Clusters of 1, 3 and 6 primaries with Sonic
// in front of one Redis. All servers share the cores of this machine, so more primaries do not give
// more commands a second here: what counts is Sonic's CPU per command.
func sonicClusterScenario(ctx context.Context, r *measure.Report) (err error) {
	b := &sonicBench{Report: r}
	if b.dir, err = os.MkdirTemp("", "aviary-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.sonic = filepath.Join(b.dir, "sonic")
	if err := servers.Build(ctx, "sonic", b.sonic); err != nil {
		return err
	}
	stop, err := b.start(ctx, "pulsar") // a lone Sonic stores nothing there, but in front of one Redis it asks who owns the topic
	defer stop()
	if err != nil {
		return err
	}
	b.Row("part\tin front of\tcommands/s\tCPU s/million\tratio to one Redis (median, min-max)\tRedis CPU s/million")
	if err := b.clusters(ctx, nil, []clusterPart{{"get", "get", 1, 200_000}, {"get", "get", 16, 1_000_000}, {"set", "set", 1, 200_000}, {"set", "set", 16, 1_000_000}}); err != nil {
		return err
	}
	// Zone b does not run: the effects go to its topic, as in scenario sonic.
	return b.clusters(ctx, []string{"a", "b"}, []clusterPart{{"idle", "", 0, 0}, {"replicated", "set", 1, 60_000}, {"replicated", "set", 16, 120_000}})
}

// clusterPart is a load of n commands. Without a command it is none: the services are measured while
// they have nothing to do.
type clusterPart struct {
	name, command string
	pipeline, n   int
}

func (p clusterPart) String() string {
	if p.command == "" {
		return p.name
	}
	return fmt.Sprintf("%s_p%d", p.name, p.pipeline)
}

// clusters runs parts with the same services, which replicate if there are several zones.
func (b *sonicBench) clusters(ctx context.Context, zones []string, parts []clusterPart) error {
	parts = slices.DeleteFunc(parts, func(p clusterPart) bool { return !b.Wants(p.String()) })
	if len(parts) == 0 {
		return nil
	}
	fill := 3 * pieces.RedisKeys // of keys that are read few may be lacking
	if len(zones) > 0 {
		fill = pieces.RedisKeys
	}
	var sides []*side
	for _, primaries := range []int{0, 1, 3, 6} {
		one, end, err := b.inFrontOf(ctx, primaries, zones)
		if err != nil {
			return err
		}
		defer end()
		if _, err := redisBenchmark(ctx, one.address, "set", 16, fill); err != nil {
			return err
		}
		if one.after != nil {
			if err := one.after(ctx); err != nil {
				return err
			}
		}
		sides = append(sides, one)
	}
	for _, p := range parts {
		var err error
		if p.command == "" {
			err = b.idle(ctx, sides)
		} else {
			err = b.clusterPart(ctx, p, sides)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
	}
	return nil
}

func (b *sonicBench) clusterPart(ctx context.Context, p clusterPart, sides []*side) error {
	for _, s := range sides {
		s.n = p.n
	}
	if _, err := b.inTurn(ctx, p.String(), redisLoad{p.command, p.pipeline, redisClients}, sides...); err != nil {
		return err
	}
	for _, s := range sides[1:] {
		var ratios []float64 // commands per CPU second of Sonic
		for round, turn := range s.turns {
			ratios = append(ratios, sides[0].turns[round].perMillon/turn.perMillon)
		}
		b.AtLeast(p.String()+"_"+s.name+"_per_cpu_vs_one", measure.Median(ratios), .9)
	}
	return nil
}

// idle measures what services of several zones take while there is no load.
func (b *sonicBench) idle(ctx context.Context, sides []*side) error {
	const seconds = 10.0
	before := make([][2]float64, len(sides))
	for i, s := range sides {
		var err error
		if before[i][0], before[i][1], err = s.cpu(); err != nil {
			return err
		}
	}
	measure.Wait(ctx, time.Duration(seconds*float64(time.Second)))
	for i, s := range sides {
		used, redis, err := s.cpu()
		if err != nil {
			return err
		}
		sonic, each := 100*(used-before[i][0])/seconds, 100*(redis-before[i][1])/seconds/float64(len(s.redis))
		b.Row("idle\t%s\tSonic %.1f %% of a core\teach Redis %.1f %%", s.name, sonic, each)
		b.Figure("idle_"+s.name+"_percent", sonic)
		b.Figure("idle_"+s.name+"_redis_percent", each)
	}
	return nil
}

// inFrontOf starts a Sonic in front of a cluster with so many primaries; of one Redis with 0.
func (b *sonicBench) inFrontOf(ctx context.Context, primaries int, zones []string) (s *side, end func(), err error) {
	started := &side{name: "one"} // not s: that is nil where an error is returned
	s = started
	cluster := "no"
	if primaries > 0 {
		s.name, cluster = fmt.Sprintf("cluster%d", primaries), "yes"
	}
	end = func() {
		if started.endpoint != nil {
			_ = started.endpoint.Stop()
		}
		for _, redis := range started.redis {
			_ = redis.Stop()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	var addresses []string
	for range max(primaries, 1) {
		address, bus, err := servers.TwoPorts()
		if err != nil {
			return nil, end, err
		}
		_, port, _ := net.SplitHostPort(address)
		_, busPort, _ := net.SplitHostPort(bus)
		dir := filepath.Join(b.dir, "redis-"+port)
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, end, err
		}
		redis, err := servers.Start("redis-server", filepath.Join(dir, "log"), nil, "--port", port, "--bind", "127.0.0.1", "--save", "", "--dir", dir,
			"--cluster-enabled", cluster, "--cluster-port", busPort)
		if err != nil {
			return nil, end, err
		}
		s.redis = append(s.redis, redis)
		if err := answers(ctx, redis, address, pieces.Request("PING")); err != nil {
			return nil, end, err
		}
		addresses = append(addresses, address)
	}
	if err := formCluster(ctx, addresses, primaries); err != nil {
		return nil, end, err
	}
	s.endpoint, err = b.startSonic(ctx, zone{
		name: "a", redis: strings.Join(addresses, ","), cluster: primaries > 0, pulsar: b.pulsarA, zones: zones, topic: servers.Fresh("sonic"), policy: "lww",
	})
	if err != nil {
		return nil, end, err
	}
	s.address = s.endpoint.address
	if len(zones) > 0 {
		s.after = s.endpoint.drained
		if primaries > 0 {
			s.after = func(ctx context.Context) error { return drainedPrimaries(ctx, addresses) }
		}
	}
	return s, end, nil
}

// drainedPrimaries waits until the streams of all primaries are shipped.
func drainedPrimaries(ctx context.Context, addresses []string) error {
	for _, address := range addresses {
		db := pieces.Client(address)
		defer db.Close()
		for deadline := time.Now().Add(2 * time.Minute); ; measure.Wait(ctx, 20*time.Millisecond) {
			state, err := redislib.LookPrimary(ctx, db)
			if err != nil {
				return err
			}
			if state.Bytes == 0 {
				break
			}
			if time.Now().After(deadline) {
				return fmt.Errorf("%d bytes of effects are still in the outbox of %s", state.Bytes, address)
			}
		}
	}
	return nil
}

// formCluster makes a cluster of empty nodes and waits until all of them know it.
func formCluster(ctx context.Context, addresses []string, primaries int) error {
	if primaries == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if primaries < 3 { // redis-cli makes none of fewer than 3
		db := pieces.Client(addresses[0])
		defer db.Close()
		return db.ClusterAddSlotsRange(ctx, 0, 16383).Err()
	}
	out, err := exec.CommandContext(ctx, "redis-cli", append([]string{"--cluster-yes", "--cluster", "create"}, addresses...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("redis-cli --cluster create: %w: %s", err, out)
	}
	for _, address := range addresses {
		db := pieces.Client(address)
		defer db.Close()
		for {
			info, err := db.ClusterInfo(ctx).Result()
			if err != nil {
				return err
			}
			if strings.Contains(info, "cluster_state:ok") {
				break
			}
			measure.Wait(ctx, 50*time.Millisecond)
		}
	}
	return nil
}
