package store_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
)

func TestAChangeIsSeenAtOnceWhereItWasMadeAndSoonElsewhere(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	a, b := w.open(t, store.Options{Instance: "a"}), w.open(t, store.Options{Instance: "b"})
	require.Zero(t, a.Snapshot().Revision())

	bus, created, err := a.PutBus(ctx, model.NewBus("orders"), store.Condition{New: true})
	require.NoError(t, err)
	require.True(t, created)
	require.EqualValues(t, 1, bus.Revision)
	require.Equal(t, 4, bus.Partitions)
	require.Equal(t, bus, a.Snapshot().Bus("orders"), "the store that changed has it")

	seen := make(chan *store.Snapshot, 100)
	stop := b.Watch(func(s *store.Snapshot) { seen <- s })
	defer stop()
	require.Eventually(t, func() bool { return (<-seen).Bus("orders") != nil }, eventually, tick)

	sub, created, err := b.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.True(t, created)
	require.EqualValues(t, 2, sub.Revision)
	require.Len(t, sub.UID, 10)
	require.NotNil(t, sub.Rules[0].Compiled())
	require.NotNil(t, b.Snapshot().Subscriber("orders", "mail").Rules[0].Compiled())

	again, created, err := a.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{Revision: 2})
	require.NoError(t, err)
	require.False(t, created)
	require.EqualValues(t, 2, again.Revision, "the same is not stored again")

	changed := aSubscriber("orders", "mail")
	changed.Description = "all mail"
	_, _, err = a.PutSubscriber(ctx, changed, store.Condition{New: true})
	require.ErrorIs(t, err, model.ErrConflict)
	_, _, err = a.PutSubscriber(ctx, changed, store.Condition{Revision: 1})
	var conflict *model.ConflictError
	require.ErrorAs(t, err, &conflict)
	require.EqualValues(t, 2, conflict.Revision)
	now, _, err := a.PutSubscriber(ctx, changed, store.Condition{Revision: 2})
	require.NoError(t, err)
	require.EqualValues(t, 3, now.Revision)
	require.Equal(t, sub.UID, now.UID)
	require.Equal(t, sub.Created, now.Created)

	_, err = b.ChangeState(ctx, "orders", "mail", model.Disabled, "410 Gone", store.Condition{})
	require.NoError(t, err)
	got := b.Snapshot().Subscriber("orders", "mail")
	require.Equal(t, model.Disabled, got.State)
	require.Equal(t, "410 Gone", got.Reason)
	_, err = a.ChangeState(ctx, "orders", "mail", model.Active, "", store.Condition{Revision: 3})
	require.ErrorIs(t, err, model.ErrConflict, "it was changed since")
	_, err = a.ChangeState(ctx, "orders", "nobody", model.Active, "", store.Condition{Exists: true})
	require.ErrorIs(t, err, model.ErrConflict)
	_, err = a.ChangeState(ctx, "orders", "nobody", model.Active, "", store.Condition{})
	require.ErrorIs(t, err, model.ErrNotFound)
	got, _, err = a.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.Equal(t, model.Disabled, got.State, "what does not say the state keeps it")
	require.Equal(t, "410 Gone", got.Reason)

	require.ErrorIs(t, a.DeleteBus(ctx, "orders", store.Condition{}), model.ErrInUse)
	require.ErrorIs(t, a.DeleteSubscriber(ctx, "orders", "mail", store.Condition{Revision: 3}), model.ErrConflict)
	require.NoError(t, a.DeleteSubscriber(ctx, "orders", "mail", store.Condition{Revision: got.Revision}))
	require.ErrorIs(t, b.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}), model.ErrNotFound)
	require.NoError(t, b.DeleteBus(ctx, "orders", store.Condition{}))
	require.Nil(t, b.Snapshot().Bus("orders"))
	_, _, err = a.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.ErrorIs(t, err, model.ErrNotFound)
}

// What is made again under a name has another UID and a higher revision, also after a restart.
func TestDeletedAndMadeAgain(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	a := w.open(t, store.Options{})
	putBus(t, a, "orders")
	first, _, err := a.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.NoError(t, a.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))
	a.stop()

	b := w.open(t, store.Options{})
	require.Nil(t, b.Snapshot().Subscriber("orders", "mail"))
	require.EqualValues(t, 3, b.Snapshot().Revision())
	second, created, err := b.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{New: true})
	require.NoError(t, err)
	require.True(t, created)
	require.EqualValues(t, 4, second.Revision)
	require.NotEqual(t, first.UID, second.UID)
}

// Two stores, each with many goroutines that all change the same objects by the revision they have
// read: each revision is won by exactly one, and nothing that was answered as stored is lost.
func TestOneOfManyWinsEachRevision(t *testing.T) {
	t.Parallel()
	const stores, workers, rounds = 2, 8, 12
	w := newFixture(t)
	members := make([]member, stores)
	for i := range members {
		members[i] = w.open(t, store.Options{Instance: fmt.Sprint(i)})
	}
	putBus(t, members[0], "orders")
	first, _, err := members[0].PutSubscriber(testContext(t), aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)

	type win struct {
		from, to int64
		text     string
	}
	var mu sync.Mutex
	var wins []win
	conflicts := 0
	revision := first.Revision
	for round := range rounds {
		var all sync.WaitGroup
		for i := range stores * workers {
			all.Go(func() {
				sub := aSubscriber("orders", "mail")
				sub.Description = fmt.Sprintf("round %d, worker %d", round, i)
				made, _, err := members[i%stores].PutSubscriber(testContext(t), sub, store.Condition{Revision: revision})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					wins = append(wins, win{revision, made.Revision, sub.Description})
				case errors.Is(err, model.ErrConflict):
					conflicts++
				default:
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
		require.Len(t, wins, round+1, "one of all wins")
		require.Greater(t, wins[round].to, revision)
		revision = wins[round].to
	}
	require.Equal(t, rounds*(stores*workers-1), conflicts)
	for _, m := range members {
		require.Eventually(t, func() bool { return m.Snapshot().Revision() == revision }, eventually, tick)
		require.Equal(t, wins[rounds-1].text, m.Snapshot().Subscriber("orders", "mail").Description)
	}
}

// A watcher is called from one goroutine, misses no state for good, and changes that come while it
// works are one call.
func TestWatchersAreToldTogether(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	ctx := testContext(t)
	a := w.open(t, store.Options{})
	putBus(t, a, "orders")
	hold, in := make(chan struct{}), make(chan int64, 100)
	stop := a.Watch(func(s *store.Snapshot) {
		in <- s.Revision()
		<-hold
	})
	require.EqualValues(t, 1, <-in, "the present snapshot")
	for i := range 5 {
		_, _, err := a.PutSubscriber(ctx, aSubscriber("orders", fmt.Sprintf("s%d", i)), store.Condition{})
		require.NoError(t, err)
	}
	close(hold)
	require.EqualValues(t, 6, <-in)
	stop()
	putBus(t, a, "more")
	require.Empty(t, in, "it was stopped")
	stop()
}

// Close waits for a watcher that does not return, but no longer than its context lasts.
func TestCloseIsNotHeldUpByAWatcher(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.open(t, store.Options{Instance: "a"})
	called, release := make(chan struct{}), make(chan struct{})
	stop := a.Watch(func(*store.Snapshot) {
		close(called)
		<-release
	})
	<-called
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- a.Close(ctx) }()
	select {
	case err := <-closed:
		require.ErrorIs(t, err, context.DeadlineExceeded)
	case <-time.After(eventually):
		t.Error("Close hangs")
	}
	close(release)
	stop()
}

func TestSubscribersOfABusAreOrderedByName(t *testing.T) {
	s, err := store.NewSnapshot(7, []model.Bus{model.NewBus("b"), model.NewBus("a")},
		[]model.Subscriber{aSubscriber("a", "z"), aSubscriber("a", "y"), aSubscriber("b", "x")})
	require.NoError(t, err)
	var names []string
	for b := range s.Buses() {
		for sub := range s.Subscribers(b.Name) {
			names = append(names, b.Name+"/"+sub.Name)
			require.NotNil(t, sub.Rules[0].Compiled())
		}
	}
	require.Equal(t, []string{"a/y", "a/z", "b/x"}, names)
	require.Equal(t, 3, s.Rules())
	require.EqualValues(t, 7, s.Revision())
}

func TestAChangeEndsWithItsContext(t *testing.T) {
	t.Parallel()
	w := newFixture(t)
	a := w.open(t, store.Options{})
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	_, _, err := a.PutBus(ended, model.NewBus("orders"), store.Condition{})
	require.ErrorIs(t, err, model.ErrUnavailable)
	require.ErrorIs(t, err, context.Canceled)
	a.stop()
	_, _, err = a.PutBus(testContext(t), model.NewBus("orders"), store.Condition{})
	require.ErrorIs(t, err, model.ErrClosed)
}

// The registry as a whole is bounded. Changes that make it smaller are always accepted.
func TestTheRegistryIsBounded(t *testing.T) {
	t.Parallel()
	m, _, _ := wired(t)
	ctx := testContext(t)
	long := model.NewBus("")
	for i := range 3 {
		long.Schemas = map[string]json.RawMessage{"t": json.RawMessage(`{"a":"` + strings.Repeat("x", 500<<10) + `"}`)}
		long.Name = fmt.Sprintf("b%d", i)
		_, _, err := m.PutBus(ctx, long, store.Condition{})
		require.NoError(t, err)
	}
	m.Weigh(model.MaxBytes)
	long.Name = "more"
	_, _, err := m.PutBus(ctx, long, store.Condition{})
	require.Len(t, storetest.Faults(t, err), 1)
	require.ErrorContains(t, err, "the limit is 67108864")
	long.Name, long.Schemas = "b0", nil
	_, _, err = m.PutBus(ctx, long, store.Condition{})
	require.NoError(t, err)
	require.NoError(t, m.DeleteBus(ctx, "b1", store.Condition{}))
	long.Schemas = map[string]json.RawMessage{"t": json.RawMessage(`"` + strings.Repeat("x", 600<<10) + `"`)}
	_, _, err = m.PutBus(ctx, long, store.Condition{})
	require.ErrorContains(t, err, "must be a JSON Schema")
	long.Schemas["t"] = json.RawMessage(`{"a":"` + strings.Repeat("x", 600<<10) + `"}`)
	_, _, err = m.PutBus(ctx, long, store.Condition{})
	require.ErrorContains(t, err, "must have at most 524288 bytes")
}
