package engine

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/registrytest"
)

// Lanes end with their subscriber, also with one that was disabled before, and none is made for an event that was matched
// before the subscriber was deleted: it would make the subscriber's topics anew.
func TestLanesEndWithTheirSubscriber(t *testing.T) {
	e := New(Options{Config: DefaultConfig(), Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())})
	config := registry.Bus{Name: busName, Partitions: 1, Created: time.Now()}
	snapshot := func(revision int64, state registry.State, names ...string) *registry.Snapshot {
		var subs []registry.Subscriber
		for _, name := range names {
			order := registry.OrderGroup
			if name == "none" {
				order = registry.OrderNone
			}
			s := newSubscriber(name, order, `{"type":["a"]}`)
			s.Bus, s.UID, s.Revision, s.State = busName, "u-"+name, revision, state
			subs = append(subs, s)
		}
		return registrytest.Snapshot(t, revision, []registry.Bus{config}, subs)
	}
	first := snapshot(1, registry.Active, "none", "group")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := e.newBus(ctx, first.Bus(busName), nil)
	require.True(t, b.update(first))
	b.own(ctx, "topic", 0)
	p := b.owned[0]
	group := b.rules.known["u-group"]
	require.NotNil(t, p.lane(group))
	require.Len(t, b.lanes, 1)

	require.True(t, b.update(snapshot(2, registry.Disabled, "none", "group")))
	assert.Zero(t, b.rules.index.Len())
	require.NotNil(t, p.lane(group), "what was matched before is stored")
	require.Len(t, b.lanes, 1)

	require.True(t, b.update(snapshot(3, registry.Active)))
	assert.Nil(t, p.lane(group))
	assert.Empty(t, p.lanes)
	assert.Empty(t, b.lanes)
	cancel()
	e.working.Wait()
	b.halt()
	b.endLanes()
}
