package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// load publishes events of several keys, each numbered from 1, until it is stopped. Some are
// published twice.
type load struct {
	w    *fixture
	last map[string]int // by key
	ids  map[string]bool
	end  context.CancelFunc
	done sync.WaitGroup
}

func (w *fixture) load(every time.Duration) *load {
	w.t.Helper()
	r := rand.New(rand.NewPCG(soak.Seed(w.t), 0))
	l := &load{w: w, last: map[string]int{}, ids: map[string]bool{}}
	in := w.publisher()
	ctx, end := context.WithCancel(w.t.Context())
	l.end = end
	l.done.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			key := fmt.Sprint("k", r.IntN(7))
			l.last[key]++
			id := fmt.Sprint(key, "-", l.last[key])
			l.ids[id] = true
			record := &messaging.Record{Key: key, Payload: testEvent(id, "load", key, l.last[key])}
			for range 1 + r.IntN(8)/7 {
				if err := in.Publish(context.WithoutCancel(ctx), record); err != nil {
					w.t.Errorf("an event was not stored: %v", err)
					return
				}
			}
		}
	})
	w.t.Cleanup(l.stop)
	return l
}

func (l *load) stop() {
	l.end()
	l.done.Wait()
}

// ordered checks an ordered subscriber's send topic: every event once, each key's in their order,
// positions ascending.
func (l *load) ordered(name string) {
	l.w.t.Helper()
	got, positions := map[string]int{}, map[int]int64{}
	all := l.w.read(l.w.topics.Send(l.w.sub(name)))
	for _, d := range all {
		e, err := event.Decode(d.Payload)
		require.NoError(l.w.t, err)
		if want := fmt.Sprint(e.PartitionKey, "-", got[e.PartitionKey]+1); e.ID != want {
			l.w.t.Fatalf("%s: got %s in place of %s", name, e.ID, want)
		}
		got[e.PartitionKey]++
		position, err := storedPosition(d)
		require.NoError(l.w.t, err)
		require.Greater(l.w.t, position, positions[d.Partition])
		positions[d.Partition] = position
	}
	assert.Equal(l.w.t, l.last, got, "%s: the last of each key is the newest", name)
	l.w.t.Logf("%s: %d events, each once and in its order", name, len(all))
}

// atLeastOnce checks the send topic of a subscriber that is not ordered.
func (l *load) atLeastOnce(name string) {
	l.w.t.Helper()
	got := map[string]int{}
	copies := 0
	for _, d := range l.w.read(l.w.topics.Send(l.w.sub(name))) {
		e, err := event.Decode(d.Payload)
		require.NoError(l.w.t, err)
		got[e.ID]++
		copies++
	}
	for id := range l.ids {
		require.Positive(l.w.t, got[id], "%s is missing", id)
	}
	assert.Len(l.w.t, got, len(l.ids))
	l.w.t.Logf("%s: %d events, %d copies", name, len(got), copies)
}

// Engines are cut off from the brokers, stopped and begun again under load: what they still have
// under way when another one has taken over is not stored twice, and not behind what that one
// stores.
func TestTakeoverUnderLoad(t *testing.T) {
	t.Parallel()
	url, server, line := proxy.Pulsar(t)
	w := newFixture(t, server, 2,
		newSubscriber("group", model.OrderGroup, `{"type":["load"]}`),
		newSubscriber("single", model.OrderTotal, `{"type":["load"]}`),
		newSubscriber("any", model.OrderNone, `{"type":["load"]}`),
	)
	cut := w.dial(messaging.Config{URL: url, ListenerName: proxy.Listener})
	w.engine(cut, DefaultConfig())
	l := w.load(2 * time.Millisecond)
	other := w.dial(messaging.Config{URL: server.URL()})
	_, stop := w.engine(other, DefaultConfig())
	lasts := soak.Lasting(t, 1500*time.Millisecond, func(time.Duration) time.Duration { return 3 * time.Second })
	for range soak.Rounds(t, 1, 20) { // the load between faults
		time.Sleep(lasts / 2)
		line.Cut()
		time.Sleep(lasts)
		require.NoError(t, line.Restore())
		time.Sleep(lasts / 2)
		stop()
		time.Sleep(lasts / 3)
		_, stop = w.engine(other, DefaultConfig())
	}
	time.Sleep(lasts / 3)
	l.stop()
	w.acknowledged()
	l.ordered("group")
	l.ordered("single")
	l.atLeastOnce("any")
}

// Rules change while events flow: each event is matched by the rules before a change or by those
// after it, and never by neither.
func TestRulesChangeUnderLoad(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 2, newSubscriber("s", model.OrderGroup, `{"type":["load"]}`))
	e, _ := w.engine(w.client, DefaultConfig())
	l := w.load(time.Millisecond)
	patterns := []string{`{"type":["load"]}`, `{"type":[{"prefix":"lo"}]}`, `{"data":{"n":[{"numeric":[">",0]}]}}`}
	for i := range 60 {
		s := newSubscriber("s", model.OrderGroup, patterns[i%len(patterns)])
		w.set(s)
		require.Equal(t, w.rev, e.Applied())
		time.Sleep(20 * time.Millisecond)
	}
	l.stop()
	w.acknowledged()
	l.ordered("s")
}

// What came before is left out, also by an engine that has just taken over.
func TestDuplicatesAreLeftOutAcrossATakeover(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 2, newSubscriber("s", model.OrderNone, `{"type":["a"]}`))
	_, stop := w.engine(w.client, DefaultConfig())
	const n = 300
	var events []*messaging.Record
	for i := range n {
		key := fmt.Sprint("k", i%7)
		events = append(events, &messaging.Record{Key: key, Payload: testEvent(fmt.Sprint("e", i), "a", key, i)})
	}
	w.publishAll(events)
	w.publishAll(events[:100])
	w.acknowledged()
	stop()
	w.publishAll(events)
	_, stop = w.engine(w.client, DefaultConfig())
	w.publishAll(events[50:])
	w.publish("new", "a", "k1", 1)
	w.acknowledged()
	stop()
	counts := map[string]int{}
	for _, d := range w.read(w.topics.Send(w.sub("s"))) {
		e, err := event.Decode(d.Payload)
		require.NoError(t, err)
		counts[e.ID]++
	}
	assert.Len(t, counts, n+1)
	for id, count := range counts {
		assert.Equal(t, 1, count, id)
	}
}

// A send topic that accepts nothing holds the bus: no event is lost, none becomes a dead letter, and
// the others get what the queue has room for. Deleting the subscriber lets the bus go on.
func TestASendTopicThatAcceptsNothing(t *testing.T) {
	t.Parallel()
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, stack.Pulsar(t), 2,
				newSubscriber("healthy", model.OrderNone, `{"type":["a"]}`), newSubscriber("terminated", order, `{"type":["a"]}`))
			broken := *w.sub("terminated")
			w.server.Terminate(t, w.topics.Send(&broken))
			cfg := DefaultConfig()
			cfg.QueueBytes = 4 << 10
			e, _ := w.engine(w.client, cfg)
			for i := range 200 {
				w.publish(fmt.Sprint("e", i), "a", fmt.Sprint("k", i%5), i)
			}
			unhealthy := func() bool {
				b := e.bus(busName)
				b.mu.Lock()
				defer b.mu.Unlock()
				var q *sendQueue
				all := []*sendQueues{b.queues}
				for _, p := range b.owned {
					all = append(all, p.queues)
				}
				for _, queues := range all {
					queues.mu.Lock()
					q = cmp.Or(q, queues.byUID[broken.UID])
					queues.mu.Unlock()
				}
				if q == nil {
					return false
				}
				q.mu.Lock()
				defer q.mu.Unlock()
				return errors.Is(q.health.Current(), messaging.ErrTopicTerminated) && q.notFull != nil
			}
			require.Eventually(t, unhealthy, await.Patience, 10*time.Millisecond)
			assert.Less(t, len(w.read(w.topics.Send(w.sub("healthy")))), 200, "the bus waits")
			assert.Empty(t, w.read(w.topics.DeadLetter(&broken)))
			w.set(w.subs[0])
			w.acknowledged()
			assert.Len(t, w.read(w.topics.Send(w.sub("healthy"))), 200)
		})
	}
}

// bus returns what the engine has for a bus.
func (e *Engine) bus(name string) *bus {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.buses[name]
}
