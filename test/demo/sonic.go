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

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/test/demo/display"
)

// sonicFlow shows two availability zones, each with a Redis, a Pulsar cluster and a
// Sonic: what is written in one is read in the other.
func sonicFlow() flow {
	return flow{service: "sonic", binary: "sonic", servers: []string{"pulsar-geo", "redis-geo"}, start: startSonic}
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
	service *service
	db      *redis.Client // Sonic
	redis   *redis.Client // behind it

	mu         sync.Mutex
	writes     int64           // acknowledged
	lags       []time.Duration // of the latest ones, until the other zone had them
	ledger     *ledger         // of the writes, which arrive when the other zone has them
	increments int64           // sent, whether they were acknowledged or not
	surplus    *int64          // increments in this zone's Redis beyond what both zones have sent
}

// write is one that was acknowledged.
type write struct {
	n  int64
	at time.Time
}

// visits is the key that both zones increment.
func (z *zone) visits() string { return "count:visits:" + z.run }

// key and value are those of a zone's write.
func (z *zone) key(n int64) string   { return fmt.Sprintf("greeting:%s:%s:%d", z.run, z.name, n) }
func (z *zone) value(n int64) string { return fmt.Sprintf("hello %d from zone %s", n, z.name) }

func startSonic(ctx context.Context, env *environment) (running, error) {
	s := &sonic{env: env, enough: make(chan struct{}), written: make(chan struct{})}
	redis.SetLogger(noLog{}) // an error is returned, too
	binary, err := env.binaries.path(ctx, "sonic")
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
		if s.zones[i], err = startZone(ctx, env, name, binary, config, topic, 6380+i, env.servers["PULSAR_"+letter+"_URL"], env.servers["REDIS_"+letter+"_URL"]); err != nil {
			return s, err
		}
	}
	return s, nil
}

// patient has a client wait for answers as long as the demo does.
func patient(options *redis.Options) *redis.Options {
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = patience, patience, patience
	return options
}

// noLog keeps the client's log from the screen.
type noLog struct{}

func (noLog) Printf(context.Context, string, ...any) {}

func startZone(ctx context.Context, env *environment, name, binary, config, topic string, port int, pulsarURL, redisURL string) (*zone, error) {
	listen, err := env.ports.listen("sonic-"+name, port)
	if err != nil {
		return nil, err
	}
	admin, err := env.ports.listen("sonic-"+name, 9303+port-6380)
	if err != nil {
		return nil, err
	}
	behind, err := redis.ParseURL(redisURL)
	if err != nil {
		return nil, err
	}
	z := &zone{name: name, run: env.run, db: redis.NewClient(patient(&redis.Options{Addr: listen, MaxRetries: -1})), redis: redis.NewClient(patient(behind)), ledger: newLedger(1)}
	service := "sonic-" + name
	z.service, err = startService(env, service, admin, binary, []string{
		"SONIC_LISTEN=" + listen, "SONIC_ADMIN_LISTEN=" + admin, "SONIC_REDIS_URL=" + redisURL, "SONIC_PULSAR_URL=" + pulsarURL, "SONIC_ZONE=" + name,
	}, "-config.file", config)
	if err != nil {
		return z, err
	}
	if err := z.service.ready(ctx); err != nil {
		return z, err
	}
	err = z.service.await(ctx, "takes no writes", func(ctx context.Context) error {
		return z.db.Set(ctx, "ready:"+name, "yes", 0).Err()
	})
	if err := errors.Join(err, env.curves.scrape(service, admin)); err != nil {
		return z, err
	}
	env.screen.Address(service, "zone "+name, "redis://"+listen)
	env.screen.Address(service, "zones", "http://"+admin+"/zones")
	env.screen.Address(service, "admin", "http://"+admin)
	env.screen.Address(service, "in front of", redisURL)
	env.screen.Address(service, "topic", topic+"-"+name+"-0 at "+pulsarURL)
	return z, nil
}

// watch writes in both zones and reads each write in the other. It waits while the service of a zone
// is started again.
func (s *sonic) watch(ctx context.Context) error {
	for i, from := range s.zones {
		s.env.screen.Status("sonic-"+from.name, s.figures(from, s.zones[1-i]))
	}
	group, writing := errgroup.WithContext(ctx)
	for i, from := range s.zones {
		writes := make(chan write, 1<<16)
		group.Go(func() error {
			defer close(writes)
			return s.write(writing, from, writes)
		})
		group.Go(func() error { return s.read(writing, from, s.zones[1-i], writes) })
	}
	counted, stop := context.WithCancel(ctx)
	defer stop()
	var counting sync.WaitGroup
	counting.Go(func() { s.count(counted) })
	defer counting.Wait()
	defer stop()
	if err := group.Wait(); err != nil {
		return err
	}
	close(s.written)
	<-ctx.Done()
	return ctx.Err()
}

// write writes in a zone until verify or the end. What a zone that was killed may not have done is
// written again.
func (s *sonic) write(ctx context.Context, from *zone, writes chan<- write) error {
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
		for {
			run := from.service.run()
			err := from.set(ctx, n)
			if err == nil {
				break
			}
			if ctx.Err() != nil || !from.service.excused(ctx, run) {
				return fmt.Errorf("cannot write in zone %s: %w", from.name, err)
			}
		}
		w := write{n: n, at: time.Now()}
		from.mu.Lock()
		from.writes = n
		from.ledger.send(n, w.at)
		from.mu.Unlock()
		select {
		case writes <- w:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// set increments and writes.
func (z *zone) set(ctx context.Context, n int64) error {
	increment := func(by int64) {
		z.mu.Lock()
		z.increments += by
		z.mu.Unlock()
	}
	return errors.Join(untilRun(ctx, func() error {
		increment(1)
		err := z.db.Incr(ctx, z.visits()).Err()
		if notRun(err) {
			increment(-1)
		}
		return err
	}), untilRun(ctx, func() error { return z.db.Set(ctx, z.key(n), z.value(n), 0).Err() }))
}

// notRun reports whether Sonic says that it has not run a command, which every client sends again
// then. After any other error the command may have taken effect.
func notRun(err error) bool { return redis.HasErrorPrefix(err, "LOADING") }

// untilRun sends a command until Sonic has run it.
func untilRun(ctx context.Context, send func() error) error {
	for began := time.Now(); ; {
		err := send()
		if !notRun(err) || time.Since(began) > patience {
			return err
		}
		if !backoff.Sleep(ctx, sendAgainAfter) {
			return ctx.Err()
		}
	}
}

// sendAgainAfter is the pause before something that was refused for now is sent again.
const sendAgainAfter = 100 * time.Millisecond

// read reads the writes of a zone in the other one.
func (s *sonic) read(ctx context.Context, from, to *zone, writes <-chan write) error {
	for w := range writes {
		key, value := from.key(w.n), from.value(w.n)
		for {
			written, read := from.service.run(), to.service.run()
			err := to.await(ctx, key, value)
			if err == nil {
				break
			}
			// Both: what a killed zone has acknowledged reaches the other one when it runs again.
			if ctx.Err() != nil || !from.service.excused(ctx, written) && !to.service.excused(ctx, read) {
				return err
			}
		}
		lag := time.Since(w.at)
		from.mu.Lock()
		from.ledger.arrive(w.n)
		if from.lags = append(from.lags, lag); len(from.lags) > 100 {
			from.lags = from.lags[1:]
		}
		from.mu.Unlock()
		s.env.first.from("sonic")
		s.env.screen.Sample("sonic-"+from.name, func() string {
			return fmt.Sprintf("zone %s: SET %s %q    zone %s: GET %s %.1f ms later", from.name, key, value, to.name, key, display.Milliseconds(lag))
		})
	}
	return nil
}

// await reads a key in a zone until it has the value.
func (z *zone) await(ctx context.Context, key, value string) error {
	began, pause := time.Now(), 200*time.Microsecond
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		got, err := z.db.Get(ctx, key).Result()
		switch {
		case err != nil && !errors.Is(err, redis.Nil) && !notRun(err):
			return fmt.Errorf("cannot read in zone %s: %w", z.name, err)
		case err == nil && got == value:
			return nil
		case time.Since(began) > patience:
			return fmt.Errorf("%s has not reached zone %s within %s", key, z.name, patience)
		case time.Since(began) > time.Second:
			pause = 20 * time.Millisecond // the other zone is killed, or so far behind that this does not matter
		}
		timer.Reset(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// count compares the key that both zones increment with what they have sent: more than that was
// done twice.
func (s *sonic) count(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, z := range s.zones {
			done, err := z.redis.Get(ctx, z.visits()).Int64() // first: later ones are sent meanwhile
			if err != nil {
				continue
			}
			sent := int64(0)
			for _, from := range s.zones {
				from.mu.Lock()
				sent += from.increments
				from.mu.Unlock()
			}
			z.mu.Lock()
			z.surplus = new(max(0, done-sent))
			z.mu.Unlock()
		}
	}
}

// figures are those of a zone: its writes, and those that have reached the other zone.
func (s *sonic) figures(from, to *zone) func() display.Figures {
	return func() display.Figures {
		to.mu.Lock()
		twice := to.surplus
		to.mu.Unlock()
		from.mu.Lock()
		defer from.mu.Unlock()
		missing, lag := from.ledger.behind()
		f := display.Figures{
			Unit: "writes", From: "zone " + from.name, To: "zone " + to.name, Sent: new(from.ledger.sent), Arrived: from.ledger.arrived,
			Missing: new(missing), Twice: twice, Lag: lag,
		}
		if len(from.lags) > 0 {
			sorted := slices.Sorted(slices.Values(from.lags))
			f.More = []string{fmt.Sprintf("read there after %.1f ms (median), %.1f ms (longest of the last %d)",
				display.Milliseconds(sorted[len(sorted)/2]), display.Milliseconds(sorted[len(sorted)-1]), len(sorted))}
		}
		return f
	}
}

// verify compares the Redis of each zone with what was written in both.
func (s *sonic) verify(ctx context.Context) ([]display.Check, error) {
	close(s.enough)
	select {
	case <-s.written:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		checks, err := s.compare(ctx)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(checks, func(c display.Check) bool { return !c.OK() }) {
			return checks, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return checks, nil // which says what is missing
		}
	}
}

func (s *sonic) compare(ctx context.Context) ([]display.Check, error) {
	ctx = context.WithoutCancel(ctx)
	var checks []display.Check
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
		checks = append(checks, display.Check{What: fmt.Sprintf("written in zone %s, in zone %s's Redis", from.name, to.name), Want: from.writes, Got: found})
	}
	for _, z := range s.zones {
		n, err := z.redis.Get(ctx, z.visits()).Int64()
		if err != nil && !errors.Is(err, redis.Nil) {
			return nil, err
		}
		checks = append(checks, display.Check{What: fmt.Sprintf("increments in both zones, in zone %s's Redis", z.name), Want: total, Got: n})
	}
	return append(checks, display.Check{What: "zones that wrote nothing", Want: 0, Got: s.idle()}), nil
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
