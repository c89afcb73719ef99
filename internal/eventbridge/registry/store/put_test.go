package store_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// provisioner notes what it is asked for.
type provisioner struct {
	mu      sync.Mutex
	made    map[string]int // by UID
	removed map[string]int
	fail    error
}

func (p *provisioner) MakeBus(context.Context, *model.Bus) error { return p.fail }

func (p *provisioner) MakeSubscriber(_ context.Context, _ *model.Bus, s *model.Subscriber) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made[s.UID]++
	return p.fail
}

func (*provisioner) CheckOrder(context.Context, model.Order) error { return nil }

func (p *provisioner) RemoveBus(context.Context, string) error { return nil }

func (p *provisioner) RemoveSubscriber(_ context.Context, _, _, uid string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed[uid]++
	return nil
}

// What cannot be made at Pulsar is not stored, and what was made of it is removed. A subscriber
// that is stored loses nothing when a later change fails.
func TestWhatCannotBeMadeIsNotStored(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	p := &provisioner{made: map[string]int{}, removed: map[string]int{}}
	m := another(t, s, store.Options{Pulsar: p})
	ctx := testContext(t)
	putBus(t, m, "orders")
	p.fail = errors.New("no room")
	_, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.ErrorIs(t, err, model.ErrUnavailable)
	require.ErrorContains(t, err, "no room")
	_, _, err = m.PutBus(ctx, model.NewBus("more"), store.Condition{})
	require.ErrorIs(t, err, model.ErrUnavailable)
	require.EqualValues(t, 1, m.Snapshot().Revision())
	removed := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.removed)
	}
	require.Eventually(t, func() bool { return removed() == 1 }, eventually, tick)

	p.fail = nil
	made, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	topic := model.Topics{Namespace: "public/default"}.Registry()
	require.NoError(t, s.WaitProducers(ctx, topic, 0))
	s.FailProducerCreate(topic, fakebroker.TopicNotFound, 1)
	changed := aSubscriber("orders", "mail")
	changed.Description = "changed"
	_, _, err = m.PutSubscriber(ctx, changed, store.Condition{})
	require.ErrorIs(t, err, model.ErrUnavailable)
	require.NoError(t, m.DeleteSubscriber(ctx, "orders", "mail", store.Condition{}))
	require.NoError(t, m.CleanUp(ctx))
	p.mu.Lock()
	defer p.mu.Unlock()
	require.Equal(t, 1, p.removed[made.UID], "by the deletion")
	require.Len(t, p.made, 2)
}

// What cannot be changed is refused when it is given otherwise, and stays when it is not given.
func TestImmutableParts(t *testing.T) {
	t.Parallel()
	m, _, _ := wired(t)
	ctx := testContext(t)
	sub := aSubscriber("orders", "mail")
	sub.Order, sub.Start = model.OrderGroup, "earliest"
	_, _, err := m.PutSubscriber(ctx, sub, store.Condition{})
	require.NoError(t, err)
	again, _, err := m.PutSubscriber(ctx, aSubscriber("orders", "mail"), store.Condition{})
	require.NoError(t, err)
	require.Equal(t, model.OrderGroup, again.Order, "what is not given stays")
	require.Equal(t, "earliest", again.Start)
	sub.Order, sub.Start = model.OrderNone, "latest"
	_, _, err = m.PutSubscriber(ctx, sub, store.Condition{})
	require.Equal(t, []string{"/order: cannot be changed: it is group; make another subscriber", "/start: cannot be changed: it is earliest"}, storetest.Faults(t, err))
	b := model.NewBus("orders")
	b.Partitions = 2
	_, _, err = m.PutBus(ctx, b, store.Condition{})
	require.Equal(t, []string{"/partitions: cannot be changed: it is 1"}, storetest.Faults(t, err))
	b.Name = "wide"
	_, _, err = m.PutBus(ctx, b, store.Condition{})
	require.NoError(t, err)
	total := aSubscriber("wide", "all")
	total.Order = model.OrderTotal
	_, _, err = m.PutSubscriber(ctx, total, store.Condition{})
	require.Equal(t, []string{"/order: must not be total on a bus of 2 partitions: order exists only within one partition"}, storetest.Faults(t, err))
	total.Bus = "orders"
	made, _, err := m.PutSubscriber(ctx, total, store.Condition{})
	require.NoError(t, err)
	require.Equal(t, 1, made.Delivery.Concurrency)
}
