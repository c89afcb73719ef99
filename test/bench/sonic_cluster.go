package main

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/senders"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// clusterGroups are the loads that Sonics in front of one Redis and of Redis Clusters get
// alternately.
func (b *sonicBench) clusterGroups() []redisGroup {
	part := func(name, command string, pipeline, count int) redisPart {
		p := redisPart{Part: workload.Part{Name: name, WarmUpRounds: 1}, load: commands(command, pipeline, count)}
		for _, side := range []string{"cluster1", "cluster3", "cluster6"} {
			p.Targets = append(p.Targets, workload.Target{
				Name: name + "_" + side + "_per_cpu_vs_one", Figure: "cpu_us", Of: "one", Over: side, AtLeast: new(.9),
			})
		}
		return p
	}
	idle := redisPart{Part: workload.Part{Name: "idle", MaxRounds: 1}, load: senders.Load{Send: idleLoad, Seconds: 10}}
	return []redisGroup{
		{b.clusters, nil, fillAll, []redisPart{
			part("get_p1", "get", 1, 200_000), part("get_p16", "get", 16, 1_000_000),
			part("set_p1", "set", 1, 200_000), part("set_p16", "set", 16, 1_000_000),
		}},
		{b.clusters, map[string]string{"ZONES": twoZones}, senders.RedisKeys, []redisPart{ // zone b does not run
			idle, part("replicated_p1", "set", 1, 60_000), part("replicated_p16", "set", 16, 120_000),
		}},
	}
}

// idleLoad sends nothing.
func idleLoad(ctx context.Context, l senders.Load, _ *measure.Meter) error {
	measure.Wait(ctx, time.Duration(l.Seconds*float64(time.Second)))
	return ctx.Err()
}

// sonicClusterScenario compares Sonic in front of Redis Clusters of 1, 3 and 6 primaries with Sonic
// in front of one Redis. All servers share the cores of this machine, so more primaries do not give
// more commands a second here. The result is the CPU time of Sonic for each command.
func sonicClusterScenario(ctx context.Context, r *runner) error {
	b, err := newSonicBench(ctx, r, false)
	if err != nil {
		return err
	}
	for _, g := range b.clusterGroups() {
		if err := b.group(ctx, g); err != nil {
			return err
		}
	}
	return nil
}

// clusters starts the endpoints of clusterGroups.
func (b *sonicBench) clusters(ctx context.Context, environ map[string]string) (all []*endpoint, err error) {
	for i, primaries := range []int{0, 1, 3, 6} {
		name := []string{"one", "cluster1", "cluster3", "cluster6"}[i]
		e, err := b.startSonic(ctx, name, primaries, environ)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// formCluster makes a cluster of empty Redises.
func formCluster(ctx context.Context, addresses []string) error {
	args := append([]string{"--cluster-yes", "--cluster", "create"}, addresses...)
	if len(addresses) < 3 { // redis-cli creates none of fewer than 3
		_, port, _ := net.SplitHostPort(addresses[0])
		args = []string{"-e", "-p", port, "cluster", "addslotsrange", "0", "16383"}
	}
	out, err := exec.CommandContext(ctx, "redis-cli", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("redis-cli: %w: %s", err, out)
	}
	return nil
}
