package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"
)

// sonicFlow shows two availability zones, each with a Redis, a Pulsar cluster and a
// Sonic: what is written in one is read in the other.
func sonicFlow() flow {
	return flow{service: "sonic", servers: []string{"pulsar-geo", "redis-geo"}, start: startSonic}
}

type sonic struct {
	env     *environment
	zones   [2]*zone
	enough  chan struct{} // closed when nothing more is to be written
	written chan struct{} // closed when nothing more is written
}

// zone is one of the two.
type zone struct {
	name    string
	run     string // tells the keys of this demo from what an earlier one has left
	service *child
	db      *redis.Client // Sonic
	redis   *redis.Client // behind it

	mu     sync.Mutex
	writes int64           // acknowledged
	lags   []time.Duration // of the latest ones, until the other zone had them
}

// visits is the key that both zones increment.
func (z *zone) visits() string { return "count:visits:" + z.run }

// key and value are those of a zone's write.
func (z *zone) key(n int64) string   { return fmt.Sprintf("greeting:%s:%s:%d", z.run, z.name, n) }
func (z *zone) value(n int64) string { return fmt.Sprintf("hello %d from zone %s", n, z.name) }

func startSonic(ctx context.Context, env *environment) (running, error) {
	s := &sonic{env: env, enough: make(chan struct{}), written: make(chan struct{})}
	binary, err := build(ctx, env, "sonic")
	if err != nil {
		return s, err
	}
	config := filepath.Join(env.dir, "sonic.yaml")
	topic := "persistent://" + env.servers["PULSAR_GEO_NAMESPACE"] + "/sonic-" + env.run
	text := "zones: [a, b]\ntopic: " + topic + "\nconflicts:\n- {prefix: \"\", policy: lww}\n- {prefix: \"count:\", policy: counter}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return s, err
	}
	for i, name := range []string{"a", "b"} {
		letter := string(rune('A' + i))
		if s.zones[i], err = startZone(ctx, env, name, binary, config, 6380+i, env.servers["PULSAR_"+letter+"_URL"], env.servers["REDIS_"+letter+"_URL"]); err != nil {
			return s, err
		}
	}
	env.screen.note("topics  %s-a-0 and -b-0", topic)
	return s, nil
}

func startZone(ctx context.Context, env *environment, name, binary, config string, port int, pulsarURL, redisURL string) (*zone, error) {
	listen, err := listenAddress(port)
	if err != nil {
		return nil, err
	}
	admin, err := listenAddress(9303 + port - 6380)
	if err != nil {
		return nil, err
	}
	behind, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, err
	}
	z := &zone{name: name, run: env.run, db: redis.NewClient(&redis.Options{Addr: listen, MaxRetries: -1}), redis: redis.NewClient(behind)}
	z.service, err = spawn(env, "sonic-"+name, binary, []string{
		"SONIC_LISTEN=" + listen, "SONIC_ADMIN_LISTEN=" + admin, "SONIC_REDIS_URL=" + redisURL, "SONIC_PULSAR_URL=" + pulsarURL, "SONIC_ZONE=" + name,
	}, "-config.file", config)
	if err != nil {
		return nil, err
	}
	if err := z.service.await(ctx, "not ready", 30*time.Second, func(ctx context.Context) error { return ready(ctx, admin) }); err != nil {
		return z, err
	}
	err = z.service.await(ctx, "takes no writes", 30*time.Second, func(ctx context.Context) error {
		return z.db.Set(ctx, "ready:"+name, "yes", 0).Err()
	})
	if err := errors.Join(err, env.curves.scrape("sonic-"+name, admin)); err != nil {
		return z, err
	}
	env.screen.note("zone %s  redis://%s  in front of %s  zones on http://%s/zones", name, listen, redisURL, admin)
	return z, nil
}

// watch writes in both zones and reads each write in the other.
func (s *sonic) watch(ctx context.Context) error {
	for i := range s.zones {
		s.env.screen.status(s.status(s.zones[i], s.zones[1-i]))
	}
	group, writing := errgroup.WithContext(ctx)
	for i := range s.zones {
		group.Go(func() error { return s.write(writing, s.zones[i], s.zones[1-i]) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	close(s.written)
	<-ctx.Done()
	return ctx.Err()
}

func (s *sonic) write(ctx context.Context, from, to *zone) error {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for n := int64(1); ; n++ {
		select {
		case <-tick.C:
		case <-s.enough:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
		key, value := from.key(n), from.value(n)
		if err := errors.Join(from.db.Incr(ctx, from.visits()).Err(), from.db.Set(ctx, key, value, 0).Err()); err != nil {
			return fmt.Errorf("cannot write in zone %s: %w", from.name, err)
		}
		began := time.Now()
		lag, err := to.await(ctx, key, value, began)
		if err != nil {
			return err
		}
		from.mu.Lock()
		from.writes = n
		if from.lags = append(from.lags, lag); len(from.lags) > 100 {
			from.lags = from.lags[1:]
		}
		from.mu.Unlock()
		s.env.screen.sample("sonic", func() string {
			return fmt.Sprintf("zone %s: SET %s %q    zone %s: GET %s %.1f ms later", from.name, key, value, to.name, key, milliseconds(lag))
		})
	}
}

// await reads a key in a zone until it has the value, and returns how long that took.
func (z *zone) await(ctx context.Context, key, value string, began time.Time) (time.Duration, error) {
	const limit = 30 * time.Second
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	for {
		got, err := z.db.Get(ctx, key).Result()
		lag := time.Since(began)
		switch {
		case err != nil && !errors.Is(err, redis.Nil):
			return 0, fmt.Errorf("cannot read in zone %s: %w", z.name, err)
		case got == value:
			return lag, nil
		case lag > limit:
			return 0, fmt.Errorf("%s has not reached zone %s within %s", key, z.name, limit)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

func (s *sonic) status(from, to *zone) func() string {
	return func() string {
		from.mu.Lock()
		defer from.mu.Unlock()
		line := fmt.Sprintf("sonic  zone %s -> %s  %d writes", from.name, to.name, from.writes)
		if len(from.lags) > 0 {
			sorted := slices.Sorted(slices.Values(from.lags))
			line += fmt.Sprintf(", read there after %.1f ms (median), %.1f ms (longest of the last %d)",
				milliseconds(sorted[len(sorted)/2]), milliseconds(sorted[len(sorted)-1]), len(sorted))
		}
		return line
	}
}

// verify compares the Redis of each zone with what was written in both.
func (s *sonic) verify(ctx context.Context) ([]check, error) {
	close(s.enough)
	select {
	case <-s.written:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		checks, err := s.compare(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(checks, func(c check) bool { return !c.ok() }) {
			return checks, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return checks, nil // which says what is missing
		}
	}
}

func (s *sonic) compare(ctx context.Context) ([]check, error) {
	ctx = context.WithoutCancel(ctx)
	var checks []check
	var total int64
	for i, from := range s.zones {
		to := s.zones[1-i]
		found := int64(0)
		for n := int64(1); n <= from.writes; n++ {
			got, err := to.redis.Get(ctx, from.key(n)).Result()
			if err != nil && !errors.Is(err, redis.Nil) {
				return nil, err
			}
			if got == from.value(n) {
				found++
			}
		}
		total += from.writes
		checks = append(checks, check{fmt.Sprintf("written in zone %s, in zone %s's Redis", from.name, to.name), from.writes, found})
	}
	for _, z := range s.zones {
		n, err := z.redis.Get(ctx, z.visits()).Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		checks = append(checks, check{fmt.Sprintf("increments in both zones, in zone %s's Redis", z.name), total, n})
	}
	return append(checks, check{"zones that wrote nothing", 0, s.idle()}), nil
}

// idle counts the zones without a write: a smoke of nothing proves nothing.
func (s *sonic) idle() (n int64) {
	for _, z := range s.zones {
		if z.writes == 0 {
			n++
		}
	}
	return n
}

func (s *sonic) stop(ctx context.Context) error {
	var errs []error
	for _, z := range slices.Backward(s.zones[:]) {
		if z == nil {
			continue
		}
		errs = append(errs, z.db.Close(), z.service.stop(ctx), z.redis.Close())
	}
	return errors.Join(errs...)
}
