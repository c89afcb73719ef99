package main

import (
	"context"
	"errors"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/measure"
	"github.com/aviaryhq/aviary/test/bench/senders"
	"github.com/aviaryhq/aviary/test/bench/servers"
)

// redisClients is the number of connections of a load.
const redisClients = 50

// endpoint is a server to which clients send commands: Redis, or a proxy in front of Redises.
type endpoint struct {
	side string
	*servers.Server
	redises   []*servers.Server
	primaries int       // of the Redis Cluster. 0: it is no cluster
	publishes bool      // Sonic publishes its writes
	other     *endpoint // the Sonic of zone b, if it runs
}

// send sends a load, and waits until Sonic has published it.
func (e *endpoint) send(ctx context.Context, p senders.Load) (measure.Outcome, error) {
	p.URL, p.Callers = e.Address, redisClients
	if e.other != nil {
		p.FarURL = e.other.redises[0].Address
	}
	var published error
	o, err := e.Measure(ctx, p, func() { published = e.published(ctx) })
	return o, errors.Join(err, published)
}

// published waits until the outbox is empty.
func (e *endpoint) published(ctx context.Context) error {
	if !e.publishes {
		return nil
	}
	for _, redis := range e.redises {
		db := senders.Client(redis.Address)
		defer db.Close()
		if err := poll(ctx, "the outbox of "+redis.Address+" is not empty", func() (bool, error) {
			if e.primaries > 0 {
				state, err := redislib.LookPrimary(ctx, db)
				return state.Bytes == 0, err
			}
			unsent, err := redislib.New(db, redislib.Config{}).Unsent(ctx)
			return unsent.Entries == 0, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// turn sends a load to an endpoint. The figures are of its process, or of what the name says. Keys
// that differ between two zones are lost.
func (b *sonicBench) turn(ctx context.Context, to *endpoint, p senders.Load) (*load.Result, error) {
	if b.Quick {
		p.Count, p.Seconds = p.Count/5, p.Seconds/5
	}
	before, err := to.counters(ctx)
	if err != nil {
		return nil, err
	}
	o, err := to.send(ctx, p)
	if err != nil {
		return nil, err
	}
	after, err := to.counters(ctx)
	if err != nil {
		return nil, err
	}
	used := func(name string) float64 { return after[name] - before[name] }
	f := map[string]float64{"peak_mib": o.PeakMiB, "cpu_s": o.CPU, "redis_cpu_s": used("redis")}
	if n := float64(o.Messages); n > 0 {
		f["commands_s"], f["cpu_us"], f["redis_cpu_us"] = o.Rate(), 1e6*o.CPU/n, 1e6*used("redis")/n
		f["p50_us"], f["p99_us"], f["e2e_p50_ms"], f["e2e_p99_ms"] = 1000*o.P50, 1000*o.P99, o.P50, o.P99
	}
	if to.other == nil {
		return &load.Result{Figures: f}, nil
	}
	for name := range stages() {
		if n := used(name + "_count"); n > 0 {
			f[name] = 1000 * used(name) / n
		}
	}
	peak, err := to.other.Peak()
	f["zone_b_cpu_s"], f["peak_mib"] = used("zone_b"), max(o.PeakMiB, peak)
	if err != nil {
		return nil, err
	}
	different, compared, err := compareKeys(ctx, to.redises[0], to.other.redises[0])
	if compared > 0 {
		f["lost"] = different
	}
	return &load.Result{Figures: f}, err
}

// stage is a histogram in which a Sonic measures a part of a write's way.
type stage struct {
	metric string
	zoneB  bool
}

// stages are the time until the broker has stored a message, the age of its first write then, and
// the age of its last write when zone b has applied it.
func stages() map[string]stage {
	return map[string]stage{
		"publish_mean_ms": {"sonic_publish_duration_seconds", false}, "published_age_mean_ms": {"sonic_published_age_seconds", false},
		"apply_delay_mean_ms": {"sonic_apply_delay_seconds", true},
	}
}

// counters returns the CPU seconds of other processes, and the stages, so far.
func (e *endpoint) counters(ctx context.Context) (map[string]float64, error) {
	c := map[string]float64{}
	for _, redis := range e.redises {
		used, err := redis.CPU()
		if err != nil {
			return nil, err
		}
		c["redis"] += used
	}
	if e.other == nil {
		return c, nil
	}
	var err error
	if c["zone_b"], err = e.other.CPU(); err != nil {
		return nil, err
	}
	for i, s := range []*endpoint{e, e.other} {
		families, err := servers.Metrics(ctx, s.Admin+"/metrics")
		if err != nil {
			return nil, err
		}
		for name, stage := range stages() {
			if stage.zoneB != (i == 1) {
				continue
			}
			for _, m := range families[stage.metric].GetMetric() { // none before the first message
				c[name] += m.GetHistogram().GetSampleSum()
				c[name+"_count"] += float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return c, nil
}

// compareKeys counts the keys of RedisStream that two Redises have, and those that differ.
func compareKeys(ctx context.Context, one, two *servers.Server) (different, compared float64, err error) {
	keys := make([]string, senders.RedisKeys)
	for i := range keys {
		keys[i] = senders.StreamKey(i)
	}
	here, there := senders.Client(one.Address), senders.Client(two.Address)
	defer here.Close()
	defer there.Close()
	a, err1 := here.MGet(ctx, keys...).Result()
	b, err2 := there.MGet(ctx, keys...).Result()
	if err := errors.Join(err1, err2); err != nil {
		return 0, 0, err
	}
	for i := range keys {
		if a[i] != nil || b[i] != nil {
			compared++
		}
		if a[i] != b[i] {
			different++
		}
	}
	return different, compared, nil
}
