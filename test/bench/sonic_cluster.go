package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

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
	b.Row("part\tin front of\tcommands/s\tCPU s/million\tratio to one Redis (median, min-max)")
	for _, p := range []struct {
		command     string
		pipeline, n int
	}{{"get", 1, 200_000}, {"get", 16, 1_000_000}, {"set", 1, 200_000}, {"set", 16, 1_000_000}} {
		if part := fmt.Sprintf("%s_p%d", p.command, p.pipeline); r.Wants(part) {
			if err := b.clusters(ctx, part, p.command, p.pipeline, p.n); err != nil {
				return fmt.Errorf("%s: %w", part, err)
			}
		}
	}
	return nil
}

func (b *sonicBench) clusters(ctx context.Context, part, command string, pipeline, n int) (err error) {
	var sides []*side
	for _, primaries := range []int{0, 1, 3, 6} {
		one, end, err := b.inFrontOf(ctx, primaries)
		if err != nil {
			return err
		}
		defer end()
		one.n = n
		if _, err := redisBenchmark(ctx, one.address, "set", 16, 3*pieces.RedisKeys); err != nil {
			return err
		}
		sides = append(sides, one)
	}
	if _, err := b.inTurn(ctx, part, command, pipeline, sides...); err != nil {
		return err
	}
	for _, s := range sides[1:] {
		var ratios []float64 // commands per CPU second of Sonic
		for round, turn := range s.turns {
			ratios = append(ratios, sides[0].turns[round].perMillon/turn.perMillon)
		}
		b.AtLeast(part+"_"+s.name+"_per_cpu_vs_one", measure.Median(ratios), .9)
	}
	return nil
}

// inFrontOf starts a Sonic in front of a cluster with so many primaries; of one Redis with 0.
func (b *sonicBench) inFrontOf(ctx context.Context, primaries int) (s *side, end func(), err error) {
	var started []interface{ Stop() error }
	end = func() {
		for _, server := range started {
			_ = server.Stop()
		}
	}
	defer func() {
		if err != nil {
			end()
		}
	}()
	name, cluster := "one", "no"
	if primaries > 0 {
		name, cluster = fmt.Sprintf("cluster%d", primaries), "yes"
	}
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
		started = append(started, redis)
		if err := answers(ctx, redis, address, pieces.Request("PING")); err != nil {
			return nil, end, err
		}
		addresses = append(addresses, address)
	}
	if err := formCluster(ctx, addresses, primaries); err != nil {
		return nil, end, err
	}
	listen, admin, err := servers.TwoPorts()
	if err != nil {
		return nil, end, err
	}
	sonic, err := servers.Start(b.sonic, filepath.Join(b.dir, "sonic-"+name+".log"), []string{
		"SONIC_LISTEN=" + listen, "SONIC_ADMIN_LISTEN=" + admin, "SONIC_REDIS_URL=redis://" + strings.Join(addresses, ","), fmt.Sprintf("SONIC_REDIS_CLUSTER=%t", primaries > 0), "SONIC_PULSAR_URL=" + b.pulsarA, "SONIC_TOPIC=" + servers.Fresh("sonic"),
	})
	if err != nil {
		return nil, end, err
	}
	started = append([]interface{ Stop() error }{sonic}, started...)
	return &side{name: name, address: listen, endpoint: &endpoint{sonic, listen}}, end, answers(ctx, sonic, listen, pieces.Request("SET", "ready", "yes"))
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
