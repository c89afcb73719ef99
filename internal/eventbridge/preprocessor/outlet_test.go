package preprocessor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// TestATopicThatCannotBeOpenedIsLoggedNowAndThen: senders try again and again, and so do we.
func TestATopicThatCannotBeOpenedIsLoggedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		tries := 0
		open := func(context.Context, string) (Publisher, error) { tries++; return nil, messaging.ErrTopicNotFound }
		o := newOutlets(zap.New(core), registry.Topics{Namespace: namespace}, time.Second, prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}), nil, open)
		bus := &registry.Bus{Name: "orders"}
		for range 300 { // half a minute
			<-o.of(bus).ready
			time.Sleep(100 * time.Millisecond)
		}
		assert.Greater(t, tries, 20)
		assert.Equal(t, 3, logged.FilterMessage("a topic takes no records").Len())
		require.NoError(t, o.close(t.Context()))
	})
}

// Senders and operators are told why Pulsar does not answer.
func TestATopicThatIsAwaySaysWhy(t *testing.T) {
	open := func(ctx context.Context, _ string) (Publisher, error) { <-ctx.Done(); return nil, ctx.Err() }
	why := func() error { return errors.New("connection refused") }
	o := newOutlets(zap.NewNop(), registry.Topics{Namespace: namespace}, time.Millisecond, prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}), why, open)
	l := o.of(&registry.Bus{Name: "orders"})
	require.ErrorContains(t, l.await(t.Context()), "Pulsar is away: the bus' topic is not open yet: connection refused")
	l.noteLate()
	require.ErrorContains(t, l.open(), "connection refused")
	require.ErrorContains(t, o.check(), "connection refused")
	require.NoError(t, o.close(t.Context()))
}

// TestATopicOfABusThatIsGoneIsNoFault: requests that are under way may still use it.
func TestATopicOfABusThatIsGoneIsNoFault(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	open := func(context.Context, string) (Publisher, error) { return nowhere{}, nil }
	o := newOutlets(zap.New(core), registry.Topics{Namespace: namespace}, time.Second, prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}), nil, open)
	l := o.of(&registry.Bus{Name: "orders"})
	<-l.ready
	none, err := registry.NewSnapshot(1, nil, nil)
	require.NoError(t, err)
	o.sweep(none)
	o.noteOutcome(l, messaging.ErrClosed)
	assert.Zero(t, logged.Len())
	require.NoError(t, o.close(t.Context()))
}
