package ingest

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

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// TestATopicThatCannotBeOpenedIsLoggedRarely: senders retry, and each retry opens it again.
func TestATopicThatCannotBeOpenedIsLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		tries := 0
		open := func(context.Context, string) (Publisher, error) { tries++; return nil, messaging.ErrTopicNotFound }
		o := newBusTopics(zap.New(core), model.Topics{Namespace: namespace}, time.Second, prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}), nil, open)
		bus := &model.Bus{Name: "orders"}
		for range 300 { // half a minute
			<-o.of(bus).ready
			time.Sleep(100 * time.Millisecond)
		}
		assert.Greater(t, tries, 20)
		assert.Equal(t, 3, logged.FilterMessage("a topic accepts no records").Len())
		require.NoError(t, o.close(t.Context()))
	})
}

// Answers and checks say why Pulsar does not answer.
func TestATopicThatIsUnavailableHasACause(t *testing.T) {
	open := func(ctx context.Context, _ string) (Publisher, error) { <-ctx.Done(); return nil, ctx.Err() }
	why := func() error { return errors.New("connection refused") }
	o := newBusTopics(zap.NewNop(), model.Topics{Namespace: namespace}, time.Millisecond, prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}), why, open)
	topic := o.of(&model.Bus{Name: "orders"})
	require.ErrorContains(t, topic.waitOpen(t.Context()), "Pulsar is unavailable: the bus' topic is not open yet: connection refused")
	topic.suspended.NoteLate()
	require.ErrorContains(t, topic.open(), "connection refused")
	require.ErrorContains(t, o.check(), "connection refused")
	require.NoError(t, o.close(t.Context()))
}

// TestATopicOfABusThatIsGoneIsNoFault: requests that are under way may still use it.
func TestATopicOfABusThatIsGoneIsNoFault(t *testing.T) {
	core, logged := observer.New(zap.WarnLevel)
	open := func(context.Context, string) (Publisher, error) { return nowhere{}, nil }
	o := newBusTopics(zap.New(core), model.Topics{Namespace: namespace}, time.Second, prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}), nil, open)
	topic := o.of(&model.Bus{Name: "orders"})
	<-topic.ready
	none, err := store.NewSnapshot(1, nil, nil)
	require.NoError(t, err)
	o.sweep(none)
	o.noteOutcome(topic, messaging.ErrClosed)
	assert.Zero(t, logged.Len())
	require.NoError(t, o.close(t.Context()))
}
