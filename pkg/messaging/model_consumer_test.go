//go:build !race

package messaging_test

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/history"
)

// modelConsumer is one consumer of a seed, in a client of its own.
type modelConsumer struct {
	m        *modelRun
	identity string
	cfg      messaging.ConsumerConfig
	registry *prometheus.Registry
	late     sync.WaitGroup // verdicts to be given

	// Guarded by m.mu: what handlers have, to check the bounds.
	open      int
	openBytes int64
}

// startConsumers runs the consumers of the plan until the function that it returns is called.
func (m *modelRun) startConsumers() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for i := range m.plan.consumers {
		c := &modelConsumer{m: m, identity: "c" + strconv.Itoa(i), cfg: m.plan.consumer, registry: prometheus.NewRegistry()}
		m.consumers = append(m.consumers, c)
		c.cfg.Topics = []string{m.server.topic()}
		restart := m.plan.restart
		if i > 0 {
			restart = 0
		}
		running.Go(func() { c.live(ctx, restart) })
	}
	return func() {
		cancel()
		running.Wait()
	}
}

// live is the consumer's life: one Run, or two if it restarts.
func (c *modelConsumer) live(ctx context.Context, restart time.Duration) {
	client, err := messaging.Dial(ctx, c.m.server.config(c.identity), messaging.WithRegisterer(c.registry))
	if err != nil {
		c.m.violate(history.Unknown, "dial: %v", err)
		return
	}
	if restart > 0 {
		some, cancel := context.WithTimeout(ctx, restart)
		c.run(some, client)
		cancel()
	}
	c.run(ctx, client)
	c.late.Wait()
	closing, cancel := context.WithTimeout(context.Background(), modelTimeout)
	defer cancel()
	// Copies that are not acknowledged when all ends belong to messages that are not either.
	if err := client.Close(closing); err != nil && !errors.Is(err, messaging.ErrUnacknowledged) {
		c.m.violate(history.Unknown, "close client of %s: %v", c.identity, err)
	}
}

func (c *modelConsumer) run(ctx context.Context, client *messaging.Client) {
	consumer, err := client.Consumer(c.cfg)
	if err != nil {
		c.m.violate(history.Unknown, "consumer: %v", err)
		return
	}
	c.m.noteNow("%s: Run", c.identity)
	if c.m.plan.async {
		err = runAsync(ctx, consumer, c.handleAsync)
	} else {
		err = consumer.Run(ctx, c.handle)
	}
	if err != nil {
		c.m.violate(history.Unknown, "Run of %s: %v", c.identity, err)
	}
	c.m.noteNow("%s: Run returned", c.identity)
}

// begin notes that a handler was called.
func (c *modelConsumer) begin(d *messaging.Delivery) *call {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moment++
	key := d.OrderingKey
	if key == "" {
		key = d.Key
	}
	now := &call{identity: c.identity, topic: d.Topic, key: key, payload: string(d.Payload)}
	now.ID, now.Start, now.Attempt = d.ID.String(), m.moment, d.Attempt
	now.began = m.server.clock()
	m.calls = append(m.calls, now)
	c.open++
	c.openBytes += int64(len(d.Payload))
	c.checkBounds()
	stream, n := parseName(now.payload)
	m.note("%s: %s-%d (%s) attempt %d begins", c.identity, stream, n, now.ID, d.Attempt)
	return now
}

// receiveSlack is how many messages may be taken over beyond the bound: what one look at the
// receive queue brings.
const receiveSlack = 64

// checkBounds holds what handlers have against the configuration. The caller holds the lock.
func (c *modelConsumer) checkBounds() {
	limit := c.cfg.Concurrency
	if c.m.plan.async {
		limit = c.cfg.PrefetchMessages + receiveSlack
		limit *= 1 + c.m.plan.sessionEnds() // what a session's end made void has no verdict, and makes room
	}
	broken := func(text string) {
		c.m.broken = append(c.m.broken, history.Violation{Kind: history.Bounds, Text: c.identity + ": " + text})
	}
	if c.open == limit+1 {
		broken(strconv.Itoa(c.open) + " messages are being handled at once")
	}
	most := c.cfg.PrefetchBytes + int64(c.m.plan.padding+100)*int64(max(c.m.plan.partitions, 1))
	most *= 1 + int64(c.m.plan.sessionEnds())
	if c.openBytes > most {
		broken(strconv.FormatInt(c.openBytes, 10) + " bytes are being handled at once")
	}
}

// end notes how a handler ended. It is called once for each call.
func (c *modelConsumer) end(now *call, result history.Result) {
	m := c.m
	m.mu.Lock()
	defer m.mu.Unlock()
	m.moment++
	now.ended = m.server.clock()
	now.End, now.Result = m.moment, result
	if !m.plan.async {
		c.leave(now)
	}
	if result == history.Done {
		return
	}
	stream, n := parseName(now.payload)
	m.note("%s: %s-%d (%s) ended %d", c.identity, stream, n, now.ID, result)
}

// leave notes that the message is no longer with a handler. The caller holds the lock.
func (c *modelConsumer) leave(now *call) {
	c.open--
	c.openBytes -= int64(len(now.payload))
}

var errModel = errors.New("made up by the model")

// verdict is what becomes of a message, and what the library does about it.
func (c *modelConsumer) verdict(now *call) (history.Result, error) {
	stream, n := parseName(now.payload)
	draw, plan := c.m.chance(stream, n, "verdict")%1000, c.m.plan.handlers
	among := func(part int) bool {
		draw -= part
		return draw < 0
	}
	var err error
	switch {
	case among(plan.reject):
		return history.Dead, messaging.Reject(errModel)
	case among(plan.fail):
		if now.Attempt <= 1+c.m.chance(stream, n, "attempts")%3 {
			err = errModel
		}
	case among(plan.later):
		if now.Attempt <= 1 {
			err = messaging.RetryAfter(errModel, time.Duration(5+c.m.chance(stream, n, "later")%60)*time.Millisecond)
		}
	}
	switch most := c.cfg.Retry.MaxAttempts; {
	case err == nil:
		return history.Done, nil
	case most > 0 && now.Attempt >= most:
		return history.Dead, err
	default:
		return history.Failed, err
	}
}

// handlingTime is how long a message takes; it hangs with false.
func (c *modelConsumer) handlingTime(now *call) (time.Duration, bool) {
	stream, n := parseName(now.payload)
	draw, plan := c.m.chance(stream, n, "patience")%1000, c.m.plan.handlers
	switch {
	case c.m.hangs(now.payload):
		return 0, false
	case draw < plan.hang+plan.slow:
		return time.Duration(1+draw%8) * time.Millisecond, true
	default:
		return 0, true
	}
}

func (c *modelConsumer) handle(ctx context.Context, d *messaging.Delivery) error {
	now := c.begin(d)
	took, ends := c.handlingTime(now)
	if !ends {
		select {
		case <-c.m.release:
		case <-ctx.Done():
			c.end(now, history.Failed)
			return ctx.Err()
		}
	}
	time.Sleep(took)
	result, err := c.verdict(now)
	c.end(now, result)
	return err
}

// handleAsync handles a message of RunAsync. What counts for the order is the call itself; its
// verdict comes later, in any order.
func (c *modelConsumer) handleAsync(_ context.Context, d *messaging.Delivery, p pendingDelivery) {
	now := c.begin(d)
	took, ends := c.handlingTime(now)
	result, err := c.verdict(now)
	c.end(now, result)
	c.late.Go(func() {
		if ends {
			time.Sleep(3 * took)
		} else {
			<-c.m.release
		}
		c.m.mu.Lock()
		c.leave(now)
		c.m.mu.Unlock()
		complete(p, err)
	})
}

// hangs reports whether a message waits until what hangs may go on.
func (m *modelRun) hangs(payload string) bool {
	stream, n := parseName(payload)
	return m.chance(stream, n, "patience")%1000 < m.plan.handlers.hang
}
