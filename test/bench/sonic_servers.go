package main

import (
	"context"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/stack/process"
)

// sonicBench starts what the parts of a scenario need.
type sonicBench struct {
	*runner
	nutcracker string // the program
	pulsar     *cluster
	started    []*servers.Server           // of the current part
	warmUp     func(context.Context) error // nil: not needed, or done
}

// newSonicBench installs Redis and nutcracker, and starts the broker; with geo one in each of two
// zones.
func newSonicBench(ctx context.Context, r *runner, geo bool) (*sonicBench, error) {
	r.scenario.Brokers = map[string]workload.Broker{"": {Geo: geo, Conf: map[string]string{"brokerDeduplicationEnabled": "true"}}}
	r.scenario.Columns = []string{"commands_s", "cpu_s", "cpu_us", "redis_cpu_us", "p50_us", "p99_us", "e2e_p50_ms", "e2e_p99_ms", "peak_mib"}
	s, err := stack.New(stack.Config{Log: os.Stderr})
	if err != nil {
		return nil, err
	}
	lines, err1 := s.Up(ctx, "nutcracker") // this starts nothing
	_, err2 := r.folder()                  // this sets r.dir
	if err := errors.Join(err1, err2, s.Fetch(ctx, "redis")); err != nil {
		return nil, err
	}
	b := &sonicBench{runner: r, nutcracker: strings.TrimPrefix(lines[0], "NUTCRACKER_BIN=")}
	b.pulsar, err = r.cluster(ctx, "")
	return b, err
}

// stop stops the servers of a part, proxies before their Redises. A signal ends nutcracker, so
// errors do not matter.
func (b *sonicBench) stop() {
	for _, s := range slices.Backward(b.started) {
		_ = s.Stop()
	}
	b.started = nil
}

// start starts a program and waits until it listens.
func (b *sonicBench) start(ctx context.Context, program, address string, args ...string) (*servers.Server, error) {
	s, err := servers.Start(program, filepath.Join(b.dir, filepath.Base(program)+".log"), nil, args...)
	if err != nil {
		return nil, err
	}
	s.Address = address
	b.started = append(b.started, s)
	return s, poll(ctx, program+" does not listen", func() (bool, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
		if err != nil {
			return false, nil //nolint:nilerr // it is not ready yet
		}
		return true, conn.Close()
	})
}

// poll calls done until it returns true, for two minutes at most.
func poll(ctx context.Context, failure string, done func() (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 2*time.Minute, errors.New(failure))
	defer cancel()
	return process.Poll(ctx, 20*time.Millisecond, done)
}

// startRedis starts a Redis that stores nothing on disk.
func (b *sonicBench) startRedis(ctx context.Context, args ...string) (*servers.Server, error) {
	address, bus, err := servers.TwoAddresses()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(address)
	_, busPort, _ := net.SplitHostPort(bus)
	return b.start(ctx, "redis-server", address, append([]string{"--bind", "127.0.0.1", "--port", port, "--save", "", "--dir", b.dir,
		"--cluster-port", busPort, "--cluster-config-file", "nodes-" + port + ".conf"}, args...)...)
}

// startNutcracker starts a nutcracker in front of a Redis, with the settings of Debian's package.
func (b *sonicBench) startNutcracker(ctx context.Context, redis *servers.Server) (*endpoint, error) {
	listen, stats, err := servers.TwoAddresses()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "nutcracker.yml")
	text := "bench:\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  auto_eject_hosts: false\n" +
		"  listen: " + listen + "\n  servers:\n   - " + redis.Address + ":1\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(stats)
	s, err := b.start(ctx, b.nutcracker, listen, "-c", file, "-a", "127.0.0.1", "-s", port)
	return &endpoint{side: "nutcracker", Server: s, redises: []*servers.Server{redis}}, err
}

// twoZones makes Sonic publish its writes.
const twoZones = "[a, b]"

// startSonic starts a Sonic, and its Redis or a Redis Cluster with so many primaries. By default it
// is alone, in zone a.
func (b *sonicBench) startSonic(ctx context.Context, side string, primaries int, environ map[string]string) (*endpoint, error) {
	e := &endpoint{side: side, primaries: primaries, publishes: environ["ZONES"] != ""}
	var addresses, args []string
	if primaries > 0 {
		args = []string{"--cluster-enabled", "yes"}
	}
	for range max(primaries, 1) {
		redis, err := b.startRedis(ctx, args...)
		if err != nil {
			return nil, err
		}
		e.redises, addresses = append(e.redises, redis), append(addresses, redis.Address)
	}
	if primaries > 0 {
		if err := formCluster(ctx, addresses); err != nil {
			return nil, err
		}
	}
	all := map[string]string{
		"REDIS_URL": "redis://" + strings.Join(addresses, ","), "REDIS_CLUSTER": strconv.FormatBool(primaries > 0),
		"PULSAR_URL": b.pulsar.config.URL, "ZONE": "a", "TOPIC": newTopic(defaultNamespace, "sonic"),
	}
	maps.Copy(all, environ)
	var err error
	if e.Server, err = b.service(ctx, "sonic", "LISTEN", all); e.Server != nil {
		b.started = append(b.started, e.Server)
	}
	return e, err
}

// proxies starts Redis, nutcracker in front of it, and a Sonic in front of another Redis.
func (b *sonicBench) proxies(ctx context.Context, environ map[string]string) ([]*endpoint, error) {
	redis, err := b.startRedis(ctx)
	if err != nil {
		return nil, err
	}
	nutcracker, err := b.startNutcracker(ctx, redis)
	if err != nil {
		return nil, err
	}
	sonic, err := b.startSonic(ctx, "sonic", 0, environ)
	return []*endpoint{{side: "direct", Server: redis}, nutcracker, sonic}, err
}

// pair starts a Sonic in each of two zones, with a topic of their own. It returns that of zone a.
func (b *sonicBench) pair(ctx context.Context, environ map[string]string) ([]*endpoint, error) {
	environ = maps.Clone(environ)
	environ["TOPIC"] = newTopic(b.pulsar.namespace, "sonic")
	sonic, err := b.startSonic(ctx, "sonic", 0, environ)
	if err != nil {
		return nil, err
	}
	environ["ZONE"], environ["PULSAR_URL"] = "b", b.pulsar.remote
	sonic.other, err = b.startSonic(ctx, "", 0, environ)
	return []*endpoint{sonic}, err
}
