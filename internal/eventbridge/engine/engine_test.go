package engine

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestEachMatchingSubscriberGetsACopy(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 2,
		newSubscriber("all", model.OrderNone, `{"specversion":["1.0"]}`),
		newSubscriber("two", model.OrderGroup, `{"type":["a"]}`, `{"data":{"n":[{"numeric":["<",10]}]}}`),
		newSubscriber("never", model.OrderGroup, `{"type":["nothing"]}`),
	)
	off := newSubscriber("off", model.OrderNone, `{"specversion":["1.0"]}`)
	off.State = model.Disabled
	w.set(append(w.subs, off)...)
	e, _ := w.engine(w.client, DefaultConfig())
	for i := range 20 {
		w.publish(fmt.Sprint("e", i), []string{"a", "b"}[i%2], fmt.Sprint("k", i%3), i)
	}
	err := w.publisher().Publish(t.Context(), &messaging.Record{Key: "x", Payload: []byte(`{"not an event`)})
	require.NoError(t, err)
	err = w.publisher().Publish(t.Context(), &messaging.Record{
		Key: "x", Payload: []byte(`{"specversion":"1.0","id":"twice","source":"/test","type":"a","data":{"n":1,"n":2}}`),
	})
	require.NoError(t, err)
	w.acknowledged()
	assert.Equal(t, w.rev, e.Applied())

	assert.Len(t, w.read(w.topics.Send(w.sub("all"))), 20, "a duplicate key matters where a rule looks, in all subscribers' events")
	assert.Empty(t, w.read(w.topics.Send(w.sub("never"))))
	exists, err := w.client.Topic(w.topics.Send(w.sub("off"))).Subscription(model.DeliverSubscription).Backlog(t.Context())
	require.NoError(t, err)
	assert.Zero(t, exists)
	two := w.read(w.topics.Send(w.sub("two")))
	assert.Len(t, two, 15)
	last := map[int]int64{}
	for _, d := range two {
		ev, err := event.Decode(d.Payload)
		require.NoError(t, err)
		assert.Equal(t, ev.PartitionKey, d.Key)
		position, err := storedPosition(d)
		require.NoError(t, err)
		assert.Greater(t, position, last[d.Partition])
		last[d.Partition] = position
	}
	dead := w.read(w.topics.BusDeadLetter(busName))
	require.Len(t, dead, 2)
	deadLetter, ok := dead[0].DeadLetter()
	require.True(t, ok)
	assert.NotEmpty(t, deadLetter.Reason)
}

// The source and id of events of two tenants may be the same: neither suppresses the other's, here
// and after a takeover. The copy says whose event it is.
func TestTenantsDoNotSuppressEachOthersEvents(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 1, newSubscriber("s", model.OrderNone, `{"type":["order.paid"]}`))
	put := func(tenant, kind string) {
		require.NoError(t, w.publisher().Publish(t.Context(), &messaging.Record{
			Key: "/shop\norder-43", Payload: fmt.Appendf(nil, `{"specversion":"1.0","id":"order-43","source":"/shop","type":%q}`, kind),
			Properties: map[string]string{model.PropertyTenant: tenant},
		}))
	}
	_, stop := w.engine(w.client, DefaultConfig())
	put("mallory", "no rule matches")
	put("shop", "order.paid")
	w.acknowledged()
	stop()
	w.engine(w.client, DefaultConfig())
	put("other", "order.paid")
	put("shop", "order.paid")
	w.acknowledged()
	var tenants []string
	for _, d := range w.read(w.topics.Send(w.sub("s"))) {
		tenants = append(tenants, d.Properties[model.PropertyTenant])
	}
	assert.Equal(t, []string{"shop", "other"}, tenants)
}

// A sender corrects an event that was refused, and sends it again with its id: it comes, once. It
// comes also if another engine has taken over, and the rules that refused the event have changed:
// they would accept it now.
func TestACorrectedEventComes(t *testing.T) {
	t.Parallel()
	const rule, changed = `{"data":{"total":[120]}}`, `{"type":["order.paid"]}`
	put := func(w *fixture, data string) {
		require.NoError(t, w.publisher().Publish(t.Context(), &messaging.Record{
			Key: "/shop\norder-43", Payload: []byte(`{"specversion":"1.0","id":"order-43","source":"/shop","type":"order.paid","data":` + data + `}`),
		}))
	}
	const twice, corrected = `{"total":1,"total":120}`, `{"total":120}`
	for name, between := range map[string]func(w *fixture, stop func()){
		"the same engine": func(*fixture, func()) {},
		"another engine":  func(w *fixture, stop func()) { stop(); w.engine(w.client, DefaultConfig()) },
		"another engine, and other rules": func(w *fixture, stop func()) {
			stop()
			w.set(newSubscriber("s", model.OrderNone, changed))
			w.engine(w.client, DefaultConfig())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, stack.Pulsar(t), 1, newSubscriber("s", model.OrderNone, rule))
			_, stop := w.engine(w.client, DefaultConfig())
			put(w, twice)
			w.acknowledged()
			require.Len(t, w.read(w.topics.BusDeadLetter(busName)), 1, "it was refused")
			between(w, stop)
			put(w, corrected)
			put(w, corrected)
			w.acknowledged()
			assert.Len(t, w.read(w.topics.Send(w.sub("s"))), 1)
		})
	}

	t.Run("both wait", func(t *testing.T) {
		t.Parallel()
		w := newFixture(t, stack.Pulsar(t), 1, newSubscriber("s", model.OrderNone, rule))
		put(w, twice) // it is read ahead together with what repeats it
		put(w, corrected)
		put(w, corrected)
		w.engine(w.client, DefaultConfig())
		w.acknowledged()
		assert.Len(t, w.read(w.topics.Send(w.sub("s"))), 1)
	})
}

// While a subscriber cannot be read nothing is consumed: what it is to get would be lost.
func TestABusWithAnUnreadableSubscriberWaits(t *testing.T) {
	t.Parallel()
	require.NoError(t, unreadable(map[string]string{"bus/orders": "newer", "sub/other/s": "newer"}, busName))
	held := unreadable(map[string]string{"sub/orders/s": "newer"}, busName)
	require.ErrorContains(t, held, "subscriber s cannot be read")

	w := newFixture(t, stack.Pulsar(t), 1, newSubscriber("s", model.OrderNone, `{"type":["a"]}`))
	e, _ := w.engine(w.client, DefaultConfig())
	w.publish("one", "a", "", 1)
	w.acknowledged()
	e.mu.Lock()
	b := e.buses[busName]
	e.mu.Unlock()
	b.hold(held)
	require.ErrorContains(t, e.Unhealthy(), "subscriber s cannot be read")
	w.publish("two", "a", "", 2)
	time.Sleep(300 * time.Millisecond) // nothing may be stored meanwhile
	assert.Len(t, w.read(w.topics.Send(w.sub("s"))), 1)
	w.set(w.subs...)
	w.acknowledged()
	assert.Len(t, w.read(w.topics.Send(w.sub("s"))), 2)
	assert.NoError(t, e.Unhealthy())
}

// A bus that is deleted is consumed no more, and one of its name is another one.
func TestBusesComeAndGo(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 1, newSubscriber("s", model.OrderNone, `{"type":["a"]}`))
	e, stop := w.engine(w.client, DefaultConfig())
	w.publish("one", "a", "", 1)
	w.acknowledged()
	assert.Equal(t, map[string][]int{busName: {0}}, e.Partitions())
	w.store.Set(storetest.Snapshot(t, 100, nil, nil))
	assert.Empty(t, e.Partitions())
	w.publish("two", "a", "", 2)
	w.rev, w.bus.Created = 200, time.Now()
	w.set(w.subs...)
	w.acknowledged()
	assert.Len(t, w.read(w.topics.Send(w.sub("s"))), 2)

	// A subscriber that is deleted takes its copies along, also those that cannot be stored.
	w.server.Terminate(t, w.topics.Send(w.sub("s")))
	w.publish("three", "a", "", 3)
	require.Eventually(t, func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		return e.buses[busName].queues.byUID["u-s"].health.Current() != nil
	}, await.Patience, 10*time.Millisecond)
	w.set()
	w.acknowledged()
	stop()
}
