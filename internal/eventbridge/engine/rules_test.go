package engine

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
)

// Queues end with their subscriber, also with one that was disabled before, and none is made for an
// event that was matched before the subscriber was deleted: it would make the subscriber's topics
// anew.
func TestQueuesEndWithTheirSubscriber(t *testing.T) {
	e := New(Options{Config: DefaultConfig(), Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())})
	config := model.Bus{Name: busName, Partitions: 1, Created: time.Now()}
	snapshot := func(revision int64, state model.State, names ...string) *store.Snapshot {
		var subs []model.Subscriber
		for _, name := range names {
			order := model.OrderGroup
			if name == "none" {
				order = model.OrderNone
			}
			s := newSubscriber(name, order, `{"type":["a"]}`)
			s.Bus, s.UID, s.Revision, s.State = busName, "u-"+name, revision, state
			subs = append(subs, s)
		}
		return storetest.Snapshot(t, revision, []model.Bus{config}, subs)
	}
	first := snapshot(1, model.Active, "none", "group")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := e.newBus(ctx, first.Bus(busName), nil)
	require.True(t, b.update(first))
	b.own(ctx, "topic", 0)
	p := b.owned[0]
	group := b.rules.known["u-group"]
	require.NotNil(t, p.queues.of(group.Subscriber))
	require.Len(t, b.queues.byUID, 1)

	require.True(t, b.update(snapshot(2, model.Disabled, "none", "group")))
	assert.Zero(t, b.rules.index.Len())
	require.NotNil(t, p.queues.of(group.Subscriber), "what was matched before is stored")
	require.Len(t, b.queues.byUID, 1)

	require.True(t, b.update(snapshot(3, model.Active)))
	assert.Nil(t, p.queues.of(group.Subscriber))
	assert.Empty(t, p.queues.byUID)
	assert.Empty(t, b.queues.byUID)
	cancel()
	e.working.Wait()
	b.halt()
	b.endQueues()
}
