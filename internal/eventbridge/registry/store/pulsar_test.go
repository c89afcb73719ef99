package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/instances"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/transfer"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// names are the topics of a fixture's namespace, by partitions.
func (w fixture) names(t testing.TB, client *messaging.Client) map[string]int {
	t.Helper()
	all := make(map[string]int)
	for _, kind := range []string{"", "/partitioned"} {
		var found []string
		require.NoError(t, w.pulsar.Admin(testContext(t), http.MethodGet, "/admin/v2/persistent/"+w.topics.Namespace+kind, nil, &found))
		for _, topic := range found {
			if kind == "" && strings.Contains(topic, "-partition-") {
				continue
			}
			n, err := client.Topic(topic).Partitions(testContext(t))
			if errors.Is(err, messaging.ErrNotFound) {
				continue // deleted: a list may have it for a moment
			}
			require.NoError(t, err)
			all[topic] = n
		}
	}
	return all
}

func (w fixture) subscriptions(t testing.TB, client *messaging.Client, topic string) []string {
	t.Helper()
	names, err := client.Topic(topic).Subscriptions(testContext(t))
	require.NoError(t, err)
	return names
}

func (w fixture) publish(t testing.TB, client *messaging.Client, topic string) {
	t.Helper()
	p, err := client.Publisher(testContext(t), topic, messaging.Business())
	require.NoError(t, err)
	require.NoError(t, p.Publish(testContext(t), &messaging.Record{Payload: []byte("x")}))
	require.NoError(t, p.Close(testContext(t)))
}

// Topics and subscriptions are there once a change is answered, and go after a deletion, when
// nobody uses them any more.
func TestTopicsAreMadeAndRemoved(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	client := w.dial(t, true)
	m := w.openWith(t, client, store.Options{Pulsar: store.NewPulsar(client, w.topics, true)})
	b := model.NewBus("orders")
	b.Partitions = 2
	_, _, err := m.PutBus(ctx, b, store.Condition{})
	require.NoError(t, err)
	names := w.names(t, client)
	require.Equal(t, 2, names[w.topics.Events("orders")])
	require.Equal(t, []string{"engine"}, w.subscriptions(t, client, w.topics.Events("orders")))

	mail, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	names = w.names(t, client)
	for _, topic := range []string{w.topics.Send(mail), w.topics.Retry(mail), w.topics.DeadLetter(mail)} {
		n, there := names[topic]
		require.True(t, there, topic)
		require.Zero(t, n)
		require.Equal(t, []string{"deliver"}, w.subscriptions(t, client, topic))
	}
	ordered := aSubscriber("orders", "books")
	ordered.Order = model.OrderGroup
	books, _, err := m.PutSubscriber(ctx, ordered, store.Condition{})
	require.NoError(t, err)
	require.Equal(t, 2, w.names(t, client)[w.topics.Send(books)], "positions are those of the bus' partitions")
	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "books", store.Condition{}))

	w.publish(t, client, w.topics.Send(mail))
	backlog, err := client.Topic(w.topics.Send(mail)).Subscription("deliver").Backlog(ctx)
	require.NoError(t, err)
	require.EqualValues(t, 1, backlog, "what is matched at once waits")

	tail, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "tail"), store.Condition{})
	require.NoError(t, err)

	// The topic is in use: it stays, and the deletion is made all the same.
	p, err := client.Publisher(ctx, w.topics.Send(mail), messaging.Business())
	require.NoError(t, err)
	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))
	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "tail", store.Condition{}))
	require.ErrorIs(t, m.CleanUp(ctx), model.ErrInUse)
	require.Contains(t, w.names(t, client), w.topics.Send(mail))
	require.NotContains(t, w.names(t, client), w.topics.Send(tail))
	// It is made again meanwhile: what was before is not forgotten.
	again, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.NoError(t, p.Close(ctx))
	tidied(t, m)
	names = w.names(t, client)
	require.NotContains(t, names, w.topics.Send(mail))
	require.Contains(t, names, w.topics.Send(again))
	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))

	// A bus that is made again begins with an empty topic, and with other partitions if need be.
	w.publish(t, client, w.topics.Events("orders"))
	w.publish(t, client, w.topics.BusDeadLetter("orders"))
	require.NoError(t, m.DeleteBus(ctx, "orders", store.Condition{}))
	b.Partitions = 3
	_, _, err = m.PutBus(ctx, b, store.Condition{New: true})
	require.NoError(t, err)
	require.Equal(t, 3, w.names(t, client)[w.topics.Events("orders")])
	backlog, err = client.Topic(w.topics.Events("orders")).Subscription("engine").Backlog(ctx)
	require.NoError(t, err)
	require.Zero(t, backlog)
	p, err = client.Publisher(ctx, w.topics.Events("orders"), messaging.Business())
	require.NoError(t, err)
	require.NoError(t, m.DeleteBus(ctx, "orders", store.Condition{}))
	_, _, err = m.PutBus(ctx, b, store.Condition{New: true})
	require.ErrorIs(t, err, model.ErrInUse)
	require.ErrorContains(t, err, "of a deleted object with this name still exists: try again in a minute")
	require.NoError(t, p.Close(ctx))
	tidied(t, m)
	require.Len(t, w.names(t, client), 1, "the registry is all that is left")
	tidied(t, m)
}

// Without deduplication no order can be promised.
func TestAnOrderTakesDeduplication(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	client := w.dial(t, true)
	m := w.openWith(t, client, store.Options{Pulsar: store.NewPulsar(client, w.topics, true)})
	putBus(t, m, "orders")
	ordered := aSubscriber("orders", "books")
	ordered.Order = model.OrderGroup
	require.NoError(t, client.Namespace(w.topics.Namespace).SetDeduplication(ctx, false))
	_, _, err := m.PutSubscriber(ctx, ordered, store.Condition{})
	require.Equal(t, []string{"/order: must be none: group needs deduplication, which is off in the namespace " + w.topics.Namespace + ": switch it on"}, storetest.Faults(t, err))
	_, _, err = m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	// An import finds it before it prunes.
	file := "format: 1\nbuses:\n  - name: orders\n    subscribers:\n      - {name: books, order: group, rules: [{name: all, pattern: {type: [a]}}], target: {log: {}}}\n"
	for _, dry := range []bool{true, false} {
		steps, err := transfer.Import(ctx, m.Store, strings.NewReader(file), transfer.Options{Prune: true, DryRun: dry})
		require.Len(t, storetest.Faults(t, err), 1)
		require.Contains(t, storetest.Faults(t, err)[0], "/buses/0/subscribers/0/order: must be none")
		require.Empty(t, steps)
		require.NotNil(t, m.Snapshot().Subscriber("orders", "mail"))
	}
	require.NoError(t, client.Namespace(w.topics.Namespace).SetDeduplication(ctx, true))
	_, _, err = m.PutSubscriber(ctx, ordered, store.Condition{})
	require.NoError(t, err)
}

// Without the admin API brokers make the topics, with one partition.
func TestTopicsAreMadeWithoutTheAdminAPI(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	client, watching := w.dial(t, false), w.dial(t, true)
	m := w.openWith(t, client, store.Options{Pulsar: store.NewPulsar(client, w.topics, false)})
	require.Contains(t, w.subscriptions(t, watching, w.topics.Registry()), "keep")
	putBus(t, m, "orders")
	mail, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.Equal(t, []string{"engine"}, w.subscriptions(t, watching, w.topics.Events("orders")))
	require.Equal(t, []string{"deliver"}, w.subscriptions(t, watching, w.topics.Send(mail)))
	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))
	tidied(t, m)
	require.Contains(t, w.names(t, watching), w.topics.Send(mail), "nothing can be removed")

	_, _, err = func() (*model.Bus, bool, error) {
		b := model.NewBus("big")
		b.Partitions = 2
		s, err := store.Open(ctx, client, w.topics, store.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close(ctx)) }()
		run, stop := context.WithCancel(ctx)
		defer stop()
		go func() { _ = s.Run(run) }()
		return s.PutBus(ctx, b, store.Condition{})
	}()
	require.Equal(t, []string{"/partitions: must be 1: more need the admin API, and pulsar.admin_url is not set"}, storetest.Faults(t, err))
}

// The registry's messages stay although the broker keeps nothing without a subscription, also once
// they were compacted, and although it was restarted meanwhile: its topic is unloaded, which has it
// begin a new ledger.
func TestTheRegistryStays(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	nothing := map[string]int{"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
	require.NoError(t, w.pulsar.Admin(ctx, http.MethodPost, "/admin/v2/namespaces/"+w.topics.Namespace+"/retention", nothing, nil))
	client := w.dial(t, true)
	m := w.openWith(t, client, store.Options{})
	putBus(t, m, "orders")
	reload := func(wantSubscribers int) {
		t.Helper()
		w.pulsar.Unload(t, w.topics.Registry())
		require.NoError(t, w.pulsar.Admin(ctx, http.MethodPost, "/admin/v2/persistent/"+w.topics.Registry()[len("persistent://"):]+"/trim", nil, nil), "trim")
		b := w.openWith(t, client, store.Options{})
		defer b.stop()
		require.NotNil(t, b.Snapshot().Bus("orders"))
		n := 0
		for range b.Snapshot().Subscribers("orders") {
			n++
		}
		require.Equal(t, wantSubscribers, n)
		require.Equal(t, m.Snapshot().Revision(), b.Snapshot().Revision())
	}
	reload(0)
	for i := range 5 {
		sub := aSubscriber("orders", "mail")
		sub.Description = fmt.Sprint(i)
		_, _, err := m.PutSubscriber(ctx, sub, store.Condition{})
		require.NoError(t, err)
	}
	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))
	_, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "other"), store.Condition{})
	require.NoError(t, err)
	reload(1)
	compacted(t, m)
	state, _, err := client.Topic(w.topics.Registry()).Compaction(ctx)
	require.NoError(t, err)
	require.Equal(t, messaging.CompactionDone, state)
	kept, err := client.Topic(w.topics.Registry()).Subscription("keep").Backlog(ctx)
	require.NoError(t, err)
	require.Zero(t, kept, "what was compacted may go")
	reload(1)
	_, _, err = m.PutSubscriber(ctx, aSubscriber("orders", "third"), store.Condition{})
	require.NoError(t, err)
	reload(2)
	compacted(t, m)
	reload(2)
}

// Deletions become tombstones, and the counter of revisions does not go back.
func TestOldDeletionsArePurged(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	client := w.dial(t, true)
	m := w.openWith(t, client, store.Options{})
	const n = 101
	for i := range n {
		name := fmt.Sprintf("b%d", i)
		putBus(t, m, name)
		require.NoError(t, m.DeleteBus(ctx, name, store.Condition{}))
	}
	require.Equal(t, 0, m.PurgeAt(ctx, t, time.Now().Add(6*24*time.Hour)))
	require.Equal(t, n, m.PurgeAt(ctx, t, time.Now().Add(8*24*time.Hour)))
	compacted(t, m)
	b := w.openWith(t, client, store.Options{})
	require.EqualValues(t, 2*n, b.Snapshot().Revision())
	require.Equal(t, 1, b.Entries(), "the counter")
	require.EqualValues(t, 2*n+1, putBus(t, b, "b0").Revision)
}

// Instances tell what they do through the status topic.
func TestStatusOfInstances(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	client := w.dial(t, true)
	run := func(name string, roles ...string) (*instances.Status, func()) {
		s, err := instances.NewStatus(client, w.topics, instances.StatusOptions{Instance: name, Roles: roles})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- s.Run(ctx) }()
		stop := func() {
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
		}
		return s, stop
	}
	a, stopA := run("a", "engine")
	b, stopB := run("b", "processor")
	a.SetRevision(3)
	b.SetState("orders", "mail", json.RawMessage(`{"breaker":"open"}`))
	for _, s := range []*instances.Status{a, b} {
		require.Eventually(t, func() bool {
			active, _ := s.Active(3)
			return active && len(s.Instances()) == 2 && string(s.States("orders", "mail")["b"]) == `{"breaker":"open"}`
		}, eventually, 10*time.Millisecond)
	}
	begin := time.Now()
	a.SetRevision(4)
	require.Eventually(t, func() bool { active, _ := b.Active(4); return active }, eventually, time.Millisecond)
	t.Logf("a revision was told in %s", time.Since(begin))
	c, stopC := run("c") // reads what was told before
	require.Eventually(t, func() bool { return len(c.Instances()) == 3 && len(c.States("orders", "mail")) == 1 }, eventually, 10*time.Millisecond)
	stopB()
	require.Eventually(t, func() bool { return len(a.Instances()) == 2 }, eventually, 10*time.Millisecond)
	require.Empty(t, a.States("orders", "mail"))
	stopA()
	stopC()
}

// compacted has the store compact its topic until it succeeds: a busy broker may not open the topic in
// time, and the store tries again, too.
func compacted(t *testing.T, m member) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool {
		err = m.CompactNow(testContext(t))
		return err == nil
	}, eventually, 100*time.Millisecond, "%v", &err)
}

// tidied has the store tidy until it succeeds: a busy broker answers a deletion with 500 now and
// then, and the store tries again, too.
func tidied(t *testing.T, m member) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool {
		err = m.CleanUp(t.Context())
		return err == nil
	}, eventually, 100*time.Millisecond, "%v", &err)
}
