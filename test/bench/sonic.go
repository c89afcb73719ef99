package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/senders"
	"github.com/aviaryhq/aviary/test/bench/workload"
)

// redisGroup is parts that run one after the other with the same endpoints.
type redisGroup struct {
	start   func(ctx context.Context, environ map[string]string) ([]*endpoint, error)
	environ map[string]string // of Sonic
	fill    int               // SETs before the first load
	parts   []redisPart
}

// redisPart is a part whose sides are the endpoints, all with one load, and more.
type redisPart struct {
	workload.Part
	load       senders.Load
	sonicCount int // commands that Sonic gets, if it gets fewer than the others because it is slower
	more       []side
}

// fillAll is a number of SETs of random keys after which few keys are missing.
const fillAll = 3 * senders.RedisKeys

// commands is a load of redis-benchmark.
func commands(command string, pipeline, count int) senders.Load {
	return senders.Load{Send: senders.RedisBenchmark, Command: command, Batch: pipeline, Count: count}
}

// sonicGroups compares Sonic with Redis itself and with nutcracker. With two zones Sonic publishes
// its writes to a broker on the same cores, and a turn ends when the outbox is empty. The last
// group has a Sonic in each zone.
func (b *sonicBench) sonicGroups(ctx context.Context) []redisGroup {
	ratio := func(name, command string, pipeline, count, sonicCount int, least float64) redisPart {
		return redisPart{
			Part: workload.Part{Name: name, WarmUpRounds: 1, Targets: []workload.Target{
				{Name: name + "_vs_direct", Figure: "commands_s", Of: "sonic", Over: "direct", AtLeast: new(least)},
				{Name: name + "_nutcracker_vs_direct", Figure: "commands_s", Of: "nutcracker", Over: "direct"},
			}},
			load: commands(command, pipeline, count), sonicCount: sonicCount,
		}
	}
	above := func(name, figure, of, than string, most *float64) workload.Target {
		return workload.Target{Name: name, Figure: figure, Of: of, Minus: than, AtMost: most}
	}
	latency := func(name, command string, p50, p99 *float64) redisPart {
		return redisPart{
			Part: workload.Part{Name: "latency_" + command, WarmUpRounds: 1, Targets: []workload.Target{
				above(name+"_added_p50_us", "p50_us", "sonic", "direct", p50), above(name+"_added_p99_us", "p99_us", "sonic", "direct", p99),
				above(name+"_nutcracker_added_p50_us", "p50_us", "nutcracker", "direct", nil),
				above(name+"_nutcracker_added_p99_us", "p99_us", "nutcracker", "direct", nil),
			}},
			load: senders.Load{Send: senders.RedisPaced, Command: command, Rate: 2000, Seconds: 6},
		}
	}
	sustained := func(rate, warmUpRounds int, targets ...workload.Target) redisPart {
		return redisPart{
			Part: workload.Part{Name: "sustained_" + strconv.Itoa(rate), MaxRounds: 1, WarmUpRounds: warmUpRounds, Targets: targets},
			load: senders.Load{Send: senders.RedisStream, Rate: rate, Seconds: 20},
		}
	}
	lww := map[string]string{"ZONES": twoZones}
	none := map[string]string{"ZONES": twoZones, "CONFLICTS": `[{prefix: "", policy: none}]`}
	return []redisGroup{
		{b.proxies, nil, fillAll, []redisPart{
			ratio("reads_p1", "get", 1, 200_000, 200_000, .7),
			ratio("reads_p16", "get", 16, 1_000_000, 1_000_000, .65),
		}},
		{b.proxies, none, 0, []redisPart{
			ratio("writes_none_p1", "set", 1, 200_000, 100_000, .45),
			ratio("writes_none_p16", "set", 16, 1_000_000, 250_000, .18),
		}},
		{b.proxies, lww, 0, []redisPart{
			ratio("writes_lww_p1", "set", 1, 200_000, 100_000, .4),
			ratio("writes_lww_p16", "set", 16, 1_000_000, 250_000, .13),
		}},
		{b.proxies, lww, fillAll, []redisPart{
			latency("reads", "get", new(100.0), new(1000.0)), latency("writes", "set", new(200.0), nil),
		}},
		{b.pair, lww, 0, []redisPart{
			{
				Part: workload.Part{Name: "lag", WarmUpRounds: 1, Targets: []workload.Target{
					above("lag_p50_more_than_pulsar_ms", "e2e_p50_ms", "sonic", "pulsar", new(1.5)),
					above("lag_p99_more_than_pulsar_ms", "e2e_p99_ms", "sonic", "pulsar", new(5.0)),
				}},
				load: senders.Load{Send: senders.RedisLag, Rate: lagRate, Seconds: lagSeconds}, more: []side{b.pulsarLag(ctx, lagSeconds)},
			},
			// The warm-up: a cold broker delays its first messages by up to a second.
			sustained(30_000, 1,
				workload.Target{Name: "replicated_writes_per_s", Figure: "commands_s", Of: "sonic", AtLeast: new(25_000.0)},
				workload.Target{Name: "sustained_lag_p99_ms", Figure: "e2e_p99_ms", Of: "sonic", AtMost: new(1000.0)}),
			sustained(70_000, 0), sustained(100_000, 0),
		}},
	}
}

// The part lag sends lagRate writes, and messages, a second.
const lagRate, lagSeconds = 1000, 10

// pulsarLag is a side of single messages. It measures the time from when a message is due in
// cluster A until a consumer in cluster B has it.
func (b *sonicBench) pulsarLag(ctx context.Context, seconds float64) side {
	if b.Quick {
		seconds /= 5
	}
	w := workload.Default()
	w.MessageSize, w.PartitionsPerTopic, w.SubscriptionsPerTopic, w.ProducerRate = 128, 0, 1, lagRate
	w.WarmupDurationMinutes, w.TestDurationMinutes = 0.5/60, seconds/60
	return b.driver(ctx, b.pulsar, &workload.Part{Name: "lag", Workload: w}, workload.Side{
		Name: "pulsar", Driver: "client", Type: messaging.Exclusive, Publisher: workload.Publisher{BatchRecords: 1},
	})
}

// sonicScenario measures Sonic as a proxy, beside Redis itself and nutcracker, and between two
// zones, beside the replication of Pulsar.
func sonicScenario(ctx context.Context, r *runner) error {
	b, err := newSonicBench(ctx, r, true)
	if err != nil {
		return err
	}
	if !r.Quick {
		b.warmUp = b.warmUpBrokers
	}
	for _, g := range b.sonicGroups(ctx) {
		if err := b.group(ctx, g); err != nil {
			return err
		}
	}
	if r.Wants("idle_clients") {
		if err := b.idleClients(ctx); err != nil {
			return fmt.Errorf("idle_clients: %w", err)
		}
	}
	peak := 0.0 // of the Sonics in all parts
	for _, p := range r.results.Parts {
		peak = max(peak, r.side(p, "sonic").Most("peak_mib"))
	}
	if peak > 0 {
		r.AtMost("sonic_peak_mib", peak, 256)
	}
	return nil
}

// group sends the loads of a group that -only selects.
func (b *sonicBench) group(ctx context.Context, g redisGroup) error {
	g.parts = slices.DeleteFunc(g.parts, func(p redisPart) bool { return !b.Wants(p.Name) })
	if len(g.parts) == 0 {
		return nil
	}
	if g.environ != nil && b.warmUp != nil { // the first group that publishes
		if err := b.warmUp(ctx); err != nil {
			return fmt.Errorf("warm-up of the brokers: %w", err)
		}
		b.warmUp = nil
	}
	defer b.stop()
	endpoints, err := g.start(ctx, g.environ)
	if err != nil {
		return err
	}
	for _, e := range endpoints {
		if g.fill > 0 && e.side != "nutcracker" { // it has the Redis of direct
			if _, err := e.send(ctx, commands("set", 16, g.fill)); err != nil {
				return err
			}
		}
	}
	for _, p := range g.parts {
		var sides []side
		for _, e := range endpoints {
			own := p.load
			if e.side == "sonic" && p.sonicCount > 0 {
				own.Count = p.sonicCount
			}
			sides = append(sides, side{e.side, func(int) (*load.Result, error) { return b.turn(ctx, e, own) }})
		}
		if err := b.compare(&p.Part, append(sides, p.more...)...); err != nil {
			return fmt.Errorf("%s: %w", p.Name, err)
		}
	}
	return nil
}

// warmUpBrokers has the brokers pass messages. A JVM that has just started takes several
// times the CPU, from the cores that everything here shares.
func (b *sonicBench) warmUpBrokers(ctx context.Context) error {
	defer b.stop()
	pair, err := b.pair(ctx, map[string]string{"ZONES": twoZones})
	if err != nil {
		return err
	}
	pulsar := b.pulsarLag(ctx, 3)
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end); {
		_, err1 := pair[0].send(ctx, commands("set", 1, 50_000))
		_, err2 := pair[0].send(ctx, commands("set", 16, 100_000))
		_, err3 := pulsar.run(warmUp)
		if err := errors.Join(err1, err2, err3); err != nil {
			return err
		}
	}
	return nil
}

// idleClients measures the memory of a connection that has sent one command.
func (b *sonicBench) idleClients(ctx context.Context) error {
	defer b.stop()
	sonic, err := b.startSonic(ctx, "sonic", 0, nil)
	if err != nil {
		return err
	}
	var conns []net.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close()
		}
	}()
	resident := func(more int) (float64, error) { // with more clients
		for range more {
			conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", sonic.Address)
			if err != nil {
				return 0, err
			}
			conns = append(conns, conn)
			if err := senders.Call(conn, "GET", "key"); err != nil {
				return 0, err
			}
		}
		return sonic.Resident()
	}
	target := workload.Target{Name: "idle_client_kib", Figure: "client_kib", Of: "sonic", AtMost: new(20.0)}
	return b.compare(&workload.Part{Name: "idle_clients", MaxRounds: 1, Targets: []workload.Target{target}},
		side{"sonic", func(int) (*load.Result, error) {
			const clients = 5000
			before, err1 := resident(100) // the first clients need memory that the others do not
			after, err2 := resident(clients)
			peak, err3 := sonic.Peak()
			f := map[string]float64{"client_kib": (after - before) * 1024 / clients, "peak_mib": peak}
			return &load.Result{Figures: f}, errors.Join(err1, err2, err3)
		}})
}
