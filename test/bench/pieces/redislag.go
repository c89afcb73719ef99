package pieces

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/test/bench/measure"
)

// redisLag writes p.Rate new keys a second at p.URL and hears from the Redis at p.Far when it has
// each.
func redisLag(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	far := Client(p.Far)
	defer far.Close()
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
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	in, value := bufio.NewReader(conn), string(measure.Body(p.Payload))

	total := int(float64(p.Rate) * p.Seconds)
	replied, seen := make([]time.Time, total), make([]time.Time, total)
	heard := make(chan error, 1)
	go func() { heard <- hear(ctx, events, space+prefix, seen) }()
	if err := m.Start(); err != nil {
		return err
	}
	if err := paced(ctx, p.Rate, total, func(n int) error {
		if _, err := conn.Write(Request("SET", prefix+strconv.Itoa(n), value)); err != nil {
			return err
		}
		err := ReadReply(in)
		replied[n] = time.Now()
		return err
	}); err != nil {
		return err
	}
	if err := <-heard; err != nil {
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

// hear notes when each key was first heard of, until all were.
func hear(ctx context.Context, events *redis.PubSub, prefix string, seen []time.Time) error {
	for left := len(seen); left > 0; {
		msg, err := events.ReceiveTimeout(ctx, 20*time.Second)
		now := time.Now()
		if err != nil {
			return fmt.Errorf("%d of %d writes never came: %w", left, len(seen), err)
		}
		event, ok := msg.(*redis.Message)
		if !ok {
			continue
		}
		n, err := strconv.Atoi(strings.TrimPrefix(event.Channel, prefix))
		if err != nil || n >= len(seen) {
			return fmt.Errorf("unexpected event %q", event.Channel)
		}
		if seen[n].IsZero() {
			seen[n] = now
			left--
		}
	}
	return nil
}

// rawLag sends p.Rate messages a second to a topic of the cluster p.URL, each by itself, and
// receives them in the cluster p.Far.
func rawLag(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	here, err := rawClient(p)
	if err != nil {
		return err
	}
	defer here.Close()
	there, err := rawClient(measure.Piece{URL: p.Far})
	if err != nil {
		return err
	}
	defer there.Close()
	producer, err := here.CreateProducer(pulsar.ProducerOptions{Topic: p.Topic, DisableBatching: true, SendTimeout: -1, CompressionType: pulsar.LZ4})
	if err != nil {
		return err
	}
	consumer, err := there.Subscribe(pulsar.ConsumerOptions{
		Topic: p.Topic, SubscriptionName: "lag", Type: pulsar.Exclusive, SubscriptionInitialPosition: pulsar.SubscriptionPositionEarliest,
	})
	if err != nil {
		return err
	}
	defer consumer.Close()
	// The first ones make the replicator, and warm up.
	const first = 500
	total := int(float64(p.Rate) * p.Seconds)
	lags := make([]time.Duration, 0, total)
	received := make(chan error, 1)
	go func() {
		for range first + total {
			msg, err := consumer.Receive(ctx)
			if err != nil {
				received <- err
				return
			}
			if n := binary.BigEndian.Uint64(msg.Payload()[8:]); n >= first {
				lags = append(lags, time.Since(measure.Stamped(msg.Payload())))
			}
			if err := consumer.Ack(msg); err != nil {
				received <- err
				return
			}
		}
		received <- nil
	}()
	var t tally
	if err := m.Start(); err != nil {
		return err
	}
	if err := paced(ctx, p.Rate, first+total, func(n int) error {
		payload := make([]byte, max(16, p.Payload))
		binary.BigEndian.PutUint64(payload[8:], uint64(n))
		binary.BigEndian.PutUint64(payload, uint64(time.Now().UnixNano()))
		producer.SendAsync(ctx, &pulsar.ProducerMessage{Payload: payload}, func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) { t.note(err) })
		return nil
	}); err != nil {
		return err
	}
	if err := <-received; err != nil {
		return err
	}
	if err := t.stop(m); err != nil {
		return err
	}
	m.Latencies(lags)
	return nil
}

// paced calls send n times, rate times a second; those that are late follow at once.
func paced(ctx context.Context, rate, n int, send func(n int) error) error {
	interval, began := time.Second/time.Duration(rate), time.Now()
	for i := range n {
		if ahead := time.Until(began.Add(time.Duration(i) * interval)); ahead > 0 {
			measure.Wait(ctx, ahead)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err := send(i); err != nil {
			return err
		}
	}
	return nil
}

// streamTick is how often each connection of redisStream sends.
const streamTick = 10 * time.Millisecond

// StreamKey is the key that connection n writes.
func StreamKey(n int) string { return "stream:" + strconv.Itoa(n) }

// redisStream offers p.Rate SETs a second at p.URL over p.Callers connections, in a pipeline every
// 10 ms, and asks the Redis at p.Far how far behind it is. A connection that gets its replies late
// sends late, so that no more than a tick's commands are under way on each.
func redisStream(ctx context.Context, p measure.Piece, m *measure.Meter) error {
	far := Client(p.Far)
	defer far.Close()
	probe := fmt.Sprintf("probe:%d", time.Now().UnixNano())
	value := string(measure.Body(p.Payload))
	perTick := p.Rate * int(streamTick/time.Millisecond) / 1000 / p.Callers
	if err := m.Start(); err != nil {
		return err
	}
	sampling, stop := context.WithCancel(ctx)
	defer stop()
	sampled := make(chan []time.Duration, 1)
	go func() { sampled <- sample(sampling, far, probe) }()

	var sent atomic.Int64
	var last atomic.Int64 // the latest probe
	errs := make(chan error, p.Callers)
	var wg sync.WaitGroup
	for c := range p.Callers {
		wg.Go(func() {
			errs <- stream(ctx, p, m.Began, func(n int, out []byte) []byte {
				for i := range perTick {
					// Every connection writes all keys, in its own order.
					k := (n*perTick + i + c*RedisKeys/p.Callers) % RedisKeys
					out = append(out, Request("SET", StreamKey(k), strconv.Itoa(c)+":"+strconv.Itoa(n)+value[:len(value)-12])...)
				}
				if c == 0 {
					now := time.Now().UnixNano()
					last.Store(now)
					out = append(out, Request("SET", probe, strconv.FormatInt(now, 10))...)
				}
				return out
			}, &sent)
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	m.Stop(int(sent.Load()))
	// A last write on a connection of its own comes behind all the others.
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Write(Request("SET", probe, "end")); err != nil {
		return err
	}
	if err := ReadReply(bufio.NewReader(conn)); err != nil {
		return err
	}
	ended := time.Now()
	for {
		got, err := far.Get(ctx, probe).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if got == "end" {
			break
		}
		if time.Since(ended) > time.Minute {
			return errors.New("the last write has not come within a minute")
		}
		measure.Wait(ctx, time.Millisecond)
	}
	m.Outcome.Rest = time.Since(ended).Seconds()
	stop()
	m.Latencies(<-sampled)
	return nil
}

// stream sends what a tick asks for, and waits for the replies, until the piece's time is over.
func stream(ctx context.Context, p measure.Piece, began time.Time, tick func(n int, out []byte) []byte, sent *atomic.Int64) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.URL)
	if err != nil {
		return err
	}
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 32<<10)
	var out []byte
	for n := 0; time.Since(began).Seconds() < p.Seconds; n++ {
		out = tick(n, out[:0])
		if _, err := conn.Write(out); err != nil {
			return err
		}
		commands := strings.Count(string(out), "*3\r\n")
		for range commands {
			if err := ReadReply(in); err != nil {
				return err
			}
		}
		sent.Add(int64(commands))
		measure.Wait(ctx, time.Until(began.Add(time.Duration(n+1)*streamTick)))
		if ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// sample asks for the probe every few milliseconds and returns how old what it got was: the lag,
// and at most two ticks.
func sample(ctx context.Context, far *redis.Client, probe string) (lags []time.Duration) {
	for ctx.Err() == nil {
		got, err := far.Get(ctx, probe).Int64()
		if err == nil {
			lags = append(lags, time.Since(time.Unix(0, got)))
		}
		measure.Wait(ctx, 5*time.Millisecond)
	}
	return lags
}

// RedisKeys is how many keys the load of a Redis picks from.
const RedisKeys = 100_000

// Client is for what is not measured. It begins with a HELLO, which nutcracker answers by hanging
// up.
func Client(address string) *redis.Client {
	return redis.NewClient(&redis.Options{Addr: address, Protocol: 2, DisableIdentity: true, MaxRetries: -1, ReadTimeout: time.Minute})
}
