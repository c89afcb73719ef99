package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// loaded is what one turn of load cost the endpoint.
type loaded struct {
	rate      float64 // commands a second
	perMillon float64 // CPU seconds of the process between, per million commands
	redis     float64 // those of the Redises behind it
	p99       float64 // ms from a client's request to its reply
}

// redisLoad is what redis-benchmark sends.
type redisLoad struct {
	command           string
	pipeline, clients int
}

// redisBenchmark has Debian's load generator send n commands, and returns how many a second were
// answered.
func redisBenchmark(ctx context.Context, address, command string, pipeline, n int) (float64, error) {
	rate, _, err := sendLoad(ctx, address, redisLoad{command, pipeline, redisClients}, n)
	return rate, err
}

// sendLoad is like redisBenchmark, and returns the p99 of the latency in milliseconds too.
func sendLoad(ctx context.Context, address string, l redisLoad, n int) (rate, p99 float64, err error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return 0, 0, err
	}
	cmd := exec.CommandContext(ctx, "redis-benchmark", "-h", host, "-p", port, "-c", strconv.Itoa(l.clients), "-P", strconv.Itoa(l.pipeline),
		"-d", strconv.Itoa(redisValue), "-r", strconv.Itoa(pieces.RedisKeys), "-n", strconv.Itoa(n), "-t", l.command, "--csv")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return 0, 0, fmt.Errorf("redis-benchmark: %w: %s", err, out)
	}
	// A server that refuses CONFIG is complained of above the table.
	_, table, found := strings.Cut(string(out), "\"test\"")
	if !found {
		return 0, 0, fmt.Errorf("redis-benchmark printed %q", out)
	}
	rows, err := csv.NewReader(strings.NewReader("\"test\"" + table)).ReadAll()
	if err != nil || len(rows) != 2 || len(rows[1]) < 7 {
		return 0, 0, fmt.Errorf("redis-benchmark printed %q: %w", out, err)
	}
	rate, err = strconv.ParseFloat(rows[1][1], 64)
	if err != nil {
		return 0, 0, err
	}
	p99, err = strconv.ParseFloat(rows[1][6], 64)
	return rate, p99, err
}

// side is one of what is compared.
type side struct {
	name     string
	address  string
	endpoint *endpoint         // nil: the Redis itself
	redis    []*servers.Server // behind the endpoint, if their CPU is measured
	n        int               // commands in a turn
	after    func(context.Context) error
	turns    []loaded
}

func (s *side) turn(ctx context.Context, of redisLoad, n int) (l loaded, err error) {
	before, redisBefore, err := s.cpu()
	if err != nil {
		return l, err
	}
	rate, p99, e := sendLoad(ctx, s.address, of, n)
	if e == nil && s.after != nil {
		e = s.after(ctx)
	}
	if e != nil {
		return l, e
	}
	after, redisAfter, err := s.cpu()
	million := float64(n) / 1e6
	return loaded{rate, (after - before) / million, (redisAfter - redisBefore) / million, p99}, err
}

// cpu returns the CPU seconds so far of the endpoint and of the Redises behind it.
func (s *side) cpu() (used, redis float64, err error) {
	if s.endpoint != nil {
		used, err = s.endpoint.CPU()
	}
	for _, server := range s.redis {
		v, e := server.CPU()
		redis, err = redis+v, errors.Join(err, e)
	}
	return used, redis, err
}

// inTurn runs all sides, each first in turn, and returns the ratios of each to the first one's
// rate.
func (b *sonicBench) inTurn(ctx context.Context, part string, of redisLoad, sides ...*side) (ratios [][]float64, err error) {
	for _, s := range sides {
		if b.Quick {
			s.n /= 5
		}
		s.turns = nil
		if _, err := s.turn(ctx, of, s.n/5); err != nil { // warms up
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	ratios = make([][]float64, len(sides))
	for round := range b.Rounds {
		for i := range sides {
			s := sides[(i+round)%len(sides)]
			l, err := s.turn(ctx, of, s.n)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", s.name, err)
			}
			s.turns = append(s.turns, l)
		}
		for i, s := range sides {
			ratios[i] = append(ratios[i], s.turns[round].rate/sides[0].turns[round].rate)
		}
	}
	for i, s := range sides {
		rate := measure.Median(measure.Each(s.turns, func(l loaded) float64 { return l.rate }))
		cpu := measure.Median(measure.Each(s.turns, func(l loaded) float64 { return l.perMillon }))
		p99 := measure.Median(measure.Each(s.turns, func(l loaded) float64 { return l.p99 }))
		row := fmt.Sprintf("%s\t%s\t%.0f\t%.2f\t%.2f\t%.3f (%.3f-%.3f)", part, s.name, rate, cpu, p99, measure.Median(ratios[i]), measure.Least(ratios[i]), measure.Most(ratios[i]))
		if len(s.redis) > 0 {
			redis := measure.Median(measure.Each(s.turns, func(l loaded) float64 { return l.redis }))
			row += fmt.Sprintf("\t%.2f", redis)
			b.Figure(part+"_"+s.name+"_redis_cpu_s_per_million", redis)
		}
		b.Row("%s", row)
		b.Figure(part+"_"+s.name+"_per_s", rate)
		b.Figure(part+"_"+s.name+"_p99_ms", p99)
		if s.endpoint != nil {
			b.Figure(part+"_"+s.name+"_cpu_s_per_million", cpu)
		}
	}
	return ratios, nil
}

const throughputHead = "part\tthrough\tcommands/s\tCPU s/million\tp99 ms\tratio to direct (median, min-max)"

// fill writes the keys that are read, in Redis itself and through Sonic, and waits until Sonic has
// shipped them.
func (b *sonicBench) fill(ctx context.Context, sonic *endpoint) error {
	for _, address := range []string{b.bare, sonic.address} {
		if _, err := redisBenchmark(ctx, address, "set", 16, 3*pieces.RedisKeys); err != nil {
			return err
		}
	}
	return sonic.drained(ctx)
}

// reads compares GET of keys that are there.
func (b *sonicBench) reads(ctx context.Context) (err error) {
	nutcracker, err := b.startNutcracker(ctx, b.bare)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nutcracker.quit()) }()
	sonic, err := b.startSonic(ctx, zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, topic: servers.Fresh("sonic"), policy: "lww"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end(sonic)) }()
	if err := b.fill(ctx, sonic); err != nil {
		return err
	}
	b.Row(throughputHead)
	for _, p := range []struct {
		pipeline, n int
		want        float64
	}{{1, 200_000, .7}, {16, 1_000_000, .65}} {
		part := fmt.Sprintf("reads_p%d", p.pipeline)
		ratios, err := b.inTurn(ctx, part, redisLoad{"get", p.pipeline, redisClients},
			&side{name: "direct", address: b.bare, n: p.n},
			&side{name: "nutcracker", address: nutcracker.address, endpoint: nutcracker, n: p.n},
			&side{name: "sonic", address: sonic.address, endpoint: sonic, n: p.n})
		if err != nil {
			return err
		}
		b.AtLeast(part+"_vs_direct", measure.Median(ratios[2]), p.want)
		worst := ratios[2][0] / ratios[1][0]
		for i := range ratios[2] {
			worst = min(worst, ratios[2][i]/ratios[1][i])
		}
		b.Figure(part+"_vs_nutcracker_worst", worst)
	}
	return b.nutcrackerPeak(nutcracker)
}

func (b *sonicBench) nutcrackerPeak(e *endpoint) error {
	peak, err := e.Server.Peak()
	b.Figure("nutcracker_peak_mib", max(b.Figures["nutcracker_peak_mib"], peak))
	return err
}

// writes compares SET, which a Sonic of two zones publishes meanwhile to a broker on the same
// cores. The turn includes that: the outbox is empty when the next one begins.
func (b *sonicBench) writes(ctx context.Context) (err error) {
	nutcracker, err := b.startNutcracker(ctx, b.bare)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, nutcracker.quit()) }()
	b.Row("\n" + throughputHead)
	for _, mode := range []struct {
		policy string
		want   [2]float64
	}{{"none", [2]float64{.45, .18}}, {"lww", [2]float64{.4, .13}}} {
		if err := b.writesOf(ctx, mode.policy, mode.want, nutcracker); err != nil {
			return err
		}
	}
	return b.nutcrackerPeak(nutcracker)
}

func (b *sonicBench) writesOf(ctx context.Context, policy string, want [2]float64, nutcracker *endpoint) (err error) {
	sonic, err := b.startSonic(ctx, zone{name: "a", redis: b.redisA, pulsar: b.pulsarA, zones: []string{"a", "b"}, topic: servers.Fresh("sonic"), policy: policy})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.end(sonic)) }()
	for i, p := range []struct{ pipeline, n, ours int }{{1, 200_000, 100_000}, {16, 1_000_000, 250_000}} {
		part := fmt.Sprintf("writes_%s_p%d", policy, p.pipeline)
		ratios, err := b.inTurn(ctx, part, redisLoad{"set", p.pipeline, redisClients},
			&side{name: "direct", address: b.bare, n: p.n},
			&side{name: "nutcracker", address: nutcracker.address, endpoint: nutcracker, n: p.n},
			&side{name: "sonic", address: sonic.address, endpoint: sonic, n: p.ours, after: sonic.drained})
		if err != nil {
			return err
		}
		b.AtLeast(part+"_vs_direct", measure.Median(ratios[2]), want[i])
	}
	return nil
}
