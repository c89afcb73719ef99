package senders

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// arrivalTimeout is how long a write may take to the other zone.
const arrivalTimeout = time.Minute

// RedisLag writes p.Rate new keys a second at p.URL. The Redis at p.FarURL notifies it when it has
// each.
func RedisLag(ctx context.Context, p Load, m *measure.Meter) error {
	near, far := Client(p.URL), Client(p.FarURL)
	defer near.Close()
	defer far.Close()
	ctx, cancel := context.WithTimeout(ctx, seconds(p.Seconds)+arrivalTimeout)
	defer cancel()
	if err := far.ConfigSet(ctx, "notify-keyspace-events", "KA").Err(); err != nil {
		return err
	}
	defer func() { _ = far.ConfigSet(context.WithoutCancel(ctx), "notify-keyspace-events", "").Err() }()
	prefix := fmt.Sprintf("lag:%d:", time.Now().UnixNano())
	const space = "__keyspace@0__:"
	events := far.PSubscribe(ctx, space+prefix+"*")
	defer events.Close()
	if _, err := events.Receive(ctx); err != nil { // the confirmation
		return err
	}
	total := int(float64(p.Rate) * p.Seconds)
	replied, seen := make([]time.Time, total), make([]time.Time, total)
	if err := m.Start(); err != nil {
		return err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		value := redisValue()
		for n := range total {
			measure.Wait(ctx, time.Until(m.Began.Add(time.Duration(n)*time.Second/time.Duration(p.Rate))))
			if err := near.Set(ctx, prefix+strconv.Itoa(n), value, 0).Err(); err != nil {
				return err
			}
			replied[n] = time.Now()
		}
		return nil
	})
	both.Go(func() error {
		for left := total; left > 0; {
			event, err := events.ReceiveMessage(ctx)
			now := time.Now()
			if err != nil {
				return fmt.Errorf("%d of %d writes did not arrive: %w", left, total, err)
			}
			n, err := strconv.Atoi(strings.TrimPrefix(event.Channel, space+prefix))
			if err != nil {
				return err
			}
			if seen[n].IsZero() { // a key may have several events
				seen[n] = now
				left--
			}
		}
		return nil
	})
	if err := both.Wait(); err != nil {
		return err
	}
	m.Stop(total)
	lags := make([]time.Duration, total)
	for i := range lags {
		lags[i] = seen[i].Sub(replied[i])
	}
	m.Latencies(lags)
	return nil
}

// streamTick is how often each caller of RedisStream sends.
const streamTick = 10 * time.Millisecond

// StreamKey is one of the RedisKeys keys that RedisStream writes.
func StreamKey(n int) string { return "stream:" + strconv.Itoa(n) }

// RedisStream offers p.Rate SETs a second at p.URL from p.Callers callers, in a pipeline every
// tick. A caller that gets its replies late sends late: it waits for the replies of one pipeline
// only. The measured time ends when the Redis at p.FarURL has the last write. The first caller
// writes the current time to a probe every tick. The latencies are the age of the probe's value at
// p.FarURL: the lag, and two ticks at most.
func RedisStream(ctx context.Context, p Load, m *measure.Meter) error {
	near, far := Client(p.URL), Client(p.FarURL)
	defer near.Close()
	defer far.Close()
	ctx, cancel := context.WithTimeoutCause(ctx, seconds(p.Seconds)+arrivalTimeout, errors.New("the last write did not arrive"))
	defer cancel()
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	probe := fmt.Sprintf("probe:%d", time.Now().UnixNano())
	if err := m.Start(); err != nil {
		return err
	}
	value, perTick := redisValue()[12:], p.Rate*int(streamTick/time.Millisecond)/1000/p.Callers
	var sent atomic.Int64
	send := func(caller int) error {
		for n := 0; time.Since(m.Began) < seconds(p.Seconds); n++ {
			done, err := near.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				for i := range perTick {
					key := (n*perTick + i + caller*RedisKeys/p.Callers) % RedisKeys // every caller writes all keys, in its own order
					pipe.Set(ctx, StreamKey(key), fmt.Sprintf("%d:%d%s", caller, n, value), 0)
				}
				if caller == 0 {
					pipe.Set(ctx, probe, time.Now().UnixNano(), 0)
				}
				return nil
			})
			if err != nil {
				return err
			}
			sent.Add(int64(len(done)))
			measure.Wait(ctx, time.Until(m.Began.Add(time.Duration(n+1)*streamTick)))
		}
		return nil
	}
	var senders errgroup.Group
	for caller := range p.Callers {
		senders.Go(func() error { return send(caller) })
	}
	go func() {
		err := senders.Wait()
		if err == nil {
			err = near.Set(ctx, probe, "end", 0).Err() // it follows all other writes
		}
		if err != nil {
			fail(err)
		}
	}()
	var lags []time.Duration
	for {
		value, _ := far.Get(ctx, probe).Result() // it fails before the first write, and when ctx ends
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if value == "end" {
			break
		}
		if written, err := strconv.ParseInt(value, 10, 64); err == nil {
			lags = append(lags, time.Since(time.Unix(0, written)))
		}
		measure.Wait(ctx, streamTick/2)
	}
	m.Stop(int(sent.Load()))
	m.Latencies(lags)
	return nil
}
