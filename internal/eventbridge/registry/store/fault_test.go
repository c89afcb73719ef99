package store_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
)

// changer changes one subscriber again and again until ctx ends, each time by the revision it has
// read, and notes what was answered.
func changer(ctx context.Context, t *testing.T, m member, registry, name string, wins *sync.Map, counts *sync.Map) {
	t.Helper()
	for i := 0; ctx.Err() == nil; i++ {
		sub := m.Snapshot().Subscriber("orders", "mail")
		given := aSubscriber("orders", "mail")
		given.Description = fmt.Sprintf("%s-%d", name, i)
		one, cancel := context.WithTimeout(context.Background(), 5*time.Second) // what takes longer is answered as unavailable, or unknown
		made, _, err := m.PutSubscriber(one, given, store.Condition{Revision: sub.Revision})
		cancel()
		result := "stored"
		switch {
		case err == nil:
			if other, twice := wins.LoadOrStore(sub.Revision, given.Description); twice {
				assert.Failf(t, "won twice", "revision %d: %s and %s", sub.Revision, other, given.Description)
			}
			if other, twice := wins.LoadOrStore(fmt.Sprint("made ", made.Revision), given.Description); twice {
				assert.Failf(t, "made twice", "revision %d: %s and %s", made.Revision, other, given.Description)
			}
		case errors.Is(err, model.ErrConflict):
			result = "conflict"
		case errors.Is(err, model.ErrUnknown):
			result = "unknown"
			wins.Store(given.Description, "maybe")
		case errors.Is(err, model.ErrUnavailable):
			result = "unavailable"
			wins.Store(given.Description, "never")
		default:
			assert.NoError(t, err)
		}
		n, _ := counts.LoadOrStore(registry+" "+result, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	}
}

// One of two stores has its connections cut again and again while both change the same object, and
// then the broker is killed and started again: each revision is won once, what was answered as
// stored is in the topic, what was answered as not stored is not, and both stores go on and agree.
func TestConnectionsAndTheBrokerBreakWhileManyChange(t *testing.T) {
	t.Parallel()
	url, pulsar, line := proxy.Pulsar(t, stack.Memory("-Xmx400m -XX:MaxDirectMemorySize=256m"))
	through := fixture{pulsar: pulsar, url: url, listen: proxy.Listener, topics: model.Topics{Namespace: pulsar.Namespace(t)}}
	direct := fixture{pulsar: pulsar, url: pulsar.URL(), topics: through.topics}
	a, b := through.open(t, store.Options{Instance: "a"}), direct.open(t, store.Options{Instance: "b"})
	putBus(t, b, "orders")
	_, _, err := b.PutSubscriber(testContext(t), aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return a.Snapshot().Subscriber("orders", "mail") != nil }, eventually, tick)

	var wins, counts sync.Map
	answered := func(registry string) (n int64) { // how many of its changes came to the point where a revision decides
		for _, result := range []string{" stored", " conflict"} {
			if counted, ok := counts.Load(registry + result); ok {
				n += counted.(*atomic.Int64).Load()
			}
		}
		return n
	}
	run := func(during func()) {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		var all sync.WaitGroup
		for i := range 3 {
			all.Go(func() { changer(ctx, t, a, "a", fmt.Sprintf("a%d-%d", i, time.Now().UnixNano()), &wins, &counts) })
			all.Go(func() { changer(ctx, t, b, "b", fmt.Sprintf("b%d-%d", i, time.Now().UnixNano()), &wins, &counts) })
		}
		defer all.Wait()
		defer cancel()
		during()
	}
	stored := func(m member, more int64) {
		t.Helper()
		from := m.Snapshot().Revision()
		require.Eventually(t, func() bool { return m.Snapshot().Revision() >= from+more }, eventually, tick)
	}
	run(func() {
		begin := time.Now()
		for range soak.Rounds(t, 2, 20) {
			stored(b, 3)
			before := answered("a")
			require.Eventually(t, func() bool { return answered("a") > before }, eventually, tick)
			t.Logf("the store that was cut takes part %s later", time.Since(begin))
			line.Cut()
			require.NoError(t, line.Restore())
			begin = time.Now()
		}
	})
	run(func() {
		require.NoError(t, pulsar.Kill())
		starting, cancel := context.WithTimeout(context.Background(), 5*eventually)
		defer cancel()
		require.NoError(t, pulsar.Start(starting))
		begin := time.Now()
		stored(b, 1)
		t.Logf("changes were stored again %s after the broker was up", time.Since(begin))
		stored(b, 3)
	})

	last, _, err := b.PutSubscriber(testContext(t), aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return a.Snapshot().Revision() == last.Revision }, eventually, tick)
	c := direct.open(t, store.Options{})
	require.Equal(t, last.Revision, c.Snapshot().Revision(), "who starts reads the same")

	history := texts(t, direct)
	wins.Range(func(key, value any) bool {
		text, isText := key.(string)
		switch {
		case isText && value == "never":
			assert.Zero(t, history[text], "%s was answered as not stored", text)
		case isText && value == "maybe":
			assert.LessOrEqual(t, history[text], 1, text)
		default:
			assert.Equal(t, 1, history[value.(string)], "%v was answered as stored", value)
		}
		return true
	})
	counts.Range(func(key, value any) bool {
		t.Log(key, value.(*atomic.Int64).Load())
		return true
	})
}

// texts counts the descriptions of all records of the subscriber, in the order of the topic, and
// checks that revisions ascend.
func texts(t *testing.T, w fixture) map[string]int {
	t.Helper()
	r, err := w.dial(t, false).Reader(testContext(t), messaging.ReaderConfig{Topic: w.topics.Registry()})
	require.NoError(t, err)
	defer func() { require.NoError(t, r.Close(testContext(t))) }()
	found := make(map[string]int)
	last := int64(0)
	_, err = r.ReadToEnd(testContext(t), func(_ context.Context, d *messaging.Delivery) error {
		if d.Key != "sub/orders/mail" {
			return nil
		}
		sub, revision := store.ReadSubscriber(t, d)
		require.Greater(t, revision, last, "revisions ascend")
		last = revision
		found[sub.Description]++
		return nil
	})
	require.NoError(t, err)
	return found
}
