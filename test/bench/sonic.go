package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/pieces"
	"github.com/aviaryhq/aviary/test/bench/servers"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	redisClients = 50 // of the load
	redisValue   = 64 // bytes
)

// sonicBench is what the parts of the scenario share: a Redis and a Pulsar cluster in
// each of two zones, and a Redis that no Sonic knows.
type sonicBench struct {
	*measure.Report
	dir, sonic, nutcracker string
	redisA, redisB, bare   string // host:port
	pulsarA, pulsarB       string
	adminA                 string
	namespace              string // that the clusters replicate
	peak                   float64
	warm                   bool // the brokers have been warmed up
}

// sonicScenario measures the real binary as a proxy, beside direct Redis and nutcracker,
// and between two zones, beside Pulsar's own replication.
func sonicScenario(ctx context.Context, r *measure.Report) (err error) {
	b := &sonicBench{Report: r}
	if b.dir, err = os.MkdirTemp("", "aviary-bench-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	b.sonic = filepath.Join(b.dir, "sonic")
	if err := servers.Build(ctx, "sonic", b.sonic); err != nil {
		return err
	}
	stop, err := b.servers(ctx)
	defer stop()
	if err != nil {
		return err
	}
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"loop", b.loop}, {"reads", b.reads}, {"writes", b.writes}, {"latency", b.latency}, {"idle_clients", b.idleClients}, {"lag", b.lag}, {"sustained", b.sustained},
	} {
		if !r.Wants(part.name) {
			continue
		}
		if err := b.warmUp(ctx); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
		if err := part.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", part.name, err)
		}
	}
	if b.peak > 0 {
		b.AtMost("sonic_peak_mib", b.peak, 256)
	}
	return nil
}

// warmUp has the brokers pass messages until the Java machine has compiled what that takes, as in a
// broker that has run for a while: one that has just started takes several times the CPU, and all
// of that from the cores that everything here shares.
func (b *sonicBench) warmUp(ctx context.Context) (err error) {
	if b.warm || b.Quick {
		return nil
	}
	b.warm = true
	a, _, stop, err := b.pair(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end); {
		for _, p := range []struct{ pipeline, n int }{{1, 50_000}, {16, 100_000}} {
			if _, err := redisBenchmark(ctx, a.address, "set", p.pipeline, p.n); err != nil {
				return err
			}
			if err := a.drained(ctx); err != nil {
				return err
			}
		}
		if _, err := measure.Run(ctx, measure.Piece{Kind: "raw-lag", URL: b.pulsarA, Far: b.pulsarB, Topic: b.replicated("warm"), Payload: redisValue, Rate: 1000, Seconds: 3}); err != nil {
			return err
		}
	}
	return nil
}

// servers starts what this run alone uses.
func (b *sonicBench) servers(ctx context.Context) (stop func(), err error) {
	return b.start(ctx, "pulsar-geo", "redis-geo", "nutcracker")
}

func (b *sonicBench) start(ctx context.Context, services ...string) (stop func(), err error) {
	s, err := stack.New(stack.Config{
		Log: os.Stderr, Owned: true, Checkout: fmt.Sprintf("bench-sonic-%d", os.Getpid()), PulsarConf: map[string]string{"brokerDeduplicationEnabled": "true"},
	})
	if err != nil {
		return func() {}, err
	}
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := s.Down(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
		}
	}
	lines, err := s.Up(ctx, services...)
	if err != nil {
		return stop, err
	}
	for _, line := range lines {
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "PULSAR_A_URL", "PULSAR_URL":
			b.pulsarA = value
		case "PULSAR_A_ADMIN_URL":
			b.adminA = value
		case "PULSAR_B_URL":
			b.pulsarB = value
		case "PULSAR_GEO_NAMESPACE":
			b.namespace = value
		case "NUTCRACKER_BIN":
			b.nutcracker = value
		case "REDIS_A_URL":
			b.redisA, err = hostPort(value)
		case "REDIS_B_URL":
			b.redisB, err = hostPort(value)
		case "REDIS_C_URL":
			b.bare, err = hostPort(value)
		}
		if err != nil {
			return stop, err
		}
	}
	return stop, nil
}

func hostPort(address string) (string, error) {
	u, err := url.Parse(address)
	if err != nil {
		return "", err
	}
	return u.Host, nil
}

// endpoint is a process between clients and Redis.
type endpoint struct {
	*servers.Server
	address string
}

// zone is how to run a Sonic.
type zone struct {
	name, redis, pulsar string // redis: host:port, of a cluster several with commas between
	cluster             bool
	zones               []string
	topic               string
	policy              string // for all keys
}

// startSonic runs a Sonic and waits until it takes writes. A Redis is wiped first: what the last
// Sonic kept there is of another topic.
func (b *sonicBench) startSonic(ctx context.Context, z zone) (*endpoint, error) {
	for address := range strings.SplitSeq(z.redis, ",") {
		if err := wipe(ctx, address); err != nil {
			return nil, err
		}
	}
	listen, admin, err := servers.TwoPorts()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(b.dir, "sonic-"+z.name+".yaml")
	text := fmt.Sprintf("conflicts:\n- {prefix: \"\", policy: %s}\nzones: [%s]\n", z.policy, strings.Join(z.zones, ", "))
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s, err := servers.Start(b.sonic, filepath.Join(b.dir, "sonic-"+z.name+".log"), []string{
		"SONIC_LISTEN=" + listen, "SONIC_ADMIN_LISTEN=" + admin, "SONIC_REDIS_URL=redis://" + z.redis, "SONIC_PULSAR_URL=" + z.pulsar,
		"SONIC_ZONE=" + z.name, "SONIC_TOPIC=" + z.topic,
		fmt.Sprintf("SONIC_REDIS_CLUSTER=%t", z.cluster),
	}, "-config.file", file)
	if err != nil {
		return nil, err
	}
	s.Admin = "http://" + admin
	if err := s.Await(ctx, s.Admin+"/-/ready"); err != nil {
		text, _ := os.ReadFile(filepath.Join(b.dir, "sonic-"+z.name+".log"))
		return nil, fmt.Errorf("%w: %s", errors.Join(err, s.Stop()), text[max(0, len(text)-2000):])
	}
	return &endpoint{s, listen}, answers(ctx, s, listen, pieces.Request("SET", "ready", "yes"))
}

// end stops a Sonic and keeps its memory in mind.
func (b *sonicBench) end(e *endpoint) error {
	peak, err := e.Server.Peak()
	b.peak = max(b.peak, peak)
	return errors.Join(err, e.Stop())
}

// startNutcracker runs one in front of a Redis, with the settings of Debian's package.
func (b *sonicBench) startNutcracker(ctx context.Context, redisAddress string) (*endpoint, error) {
	listen, stats, err := servers.TwoPorts()
	if err != nil {
		return nil, err
	}
	_, statsPort, _ := strings.Cut(stats, ":")
	file := filepath.Join(b.dir, "nutcracker.yml")
	text := fmt.Sprintf("bench:\n  listen: %s\n  redis: true\n  hash: fnv1a_64\n  distribution: ketama\n  auto_eject_hosts: false\n  servers:\n   - %s:1\n", listen, redisAddress)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	s, err := servers.Start(b.nutcracker, filepath.Join(b.dir, "nutcracker.log"), nil, "-c", file, "-a", "127.0.0.1", "-s", statsPort)
	if err != nil {
		return nil, err
	}
	return &endpoint{s, listen}, answers(ctx, s, listen, pieces.Request("GET", "key"))
}

// answers waits until an endpoint takes a command, and stops it if it does not.
func answers(ctx context.Context, s *servers.Server, address string, command []byte) error {
	for deadline := time.Now().Add(30 * time.Second); ; {
		err := answersOnce(ctx, address, command)
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("%s does not answer: %w", s.Name, err), s.Stop())
		}
		measure.Wait(ctx, 10*time.Millisecond)
	}
}

func answersOnce(ctx context.Context, address string, command []byte) error {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := conn.Write(command); err != nil {
		return err
	}
	return pieces.ReadReply(bufio.NewReader(conn))
}

// quit ends a process that has no orderly end.
func (e *endpoint) quit() error {
	err := e.Stop()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == -1 { // by the signal
		return nil
	}
	return err
}

func wipe(ctx context.Context, address string) error {
	db := pieces.Client(address)
	defer db.Close()
	return errors.Join(db.FlushAll(ctx).Err(), db.FunctionFlush(ctx).Err())
}

// drained waits until a Sonic has shipped what its outbox held.
func (e *endpoint) drained(ctx context.Context) error {
	for deadline := time.Now().Add(2 * time.Minute); ; {
		var z struct {
			Outbox struct {
				Length int64 `json:"length"`
				Held   int64 `json:"held"`
				Noted  int64 `json:"noted"`
			} `json:"outbox"`
		}
		if err := servers.Get(ctx, e.Admin+"/zones", &z); err != nil {
			return err
		}
		if z.Outbox.Length >= 0 && z.Outbox.Length+z.Outbox.Held+z.Outbox.Noted < 10 { // a beat may be under way
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d effects are still in the outbox", z.Outbox.Length)
		}
		measure.Wait(ctx, 20*time.Millisecond)
	}
}
