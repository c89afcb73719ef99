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
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/storetest"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// topicsOf are the topics of the buses, without a handler.
func topicsOf(t *testing.T, log *zap.Logger, openTimeout time.Duration, why func() error, open Open) (*busTable, *storetest.Store, *model.Bus) {
	t.Helper()
	known := storetest.NewStore(storetest.Snapshot(t, 1, buses(), nil))
	o := newBusTable(log, known, model.Topics{Namespace: namespace}, openTimeout, prometheus.NewGauge(prometheus.GaugeOpts{Name: "x"}), why, open)
	return o, known, known.Snapshot().Bus("orders")
}

// TestATopicThatCannotBeOpenedIsLoggedRarely: it is opened again each second.
func TestATopicThatCannotBeOpenedIsLoggedRarely(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.InfoLevel)
		tries := 0
		open := func(context.Context, string) (Publisher, error) {
			tries++
			return (*fakePublisher)(nil), messaging.ErrTopicNotFound // as a *messaging.Publisher
		}
		o, _, bus := topicsOf(t, zap.New(core), time.Second, nil, open)
		o.of(bus).topic.start()
		time.Sleep(30*time.Second - time.Millisecond)
		synctest.Wait()
		assert.Greater(t, tries, 20)
		assert.Equal(t, 3, logged.FilterMessage("a topic accepts no records").Len())
		require.NoError(t, o.close(t.Context()))
	})
}

// Answers and checks say why Pulsar does not answer.
func TestATopicThatIsUnavailableHasACause(t *testing.T) {
	open := func(ctx context.Context, _ string) (Publisher, error) { <-ctx.Done(); return nil, ctx.Err() }
	why := func() error { return errors.New("connection refused") }
	o, _, bus := topicsOf(t, zap.NewNop(), time.Millisecond, why, open)
	topic := o.of(bus).topic
	_, err := topic.wait(t.Context())
	require.ErrorContains(t, err, "Pulsar is unavailable: the bus' topic is not open yet: connection refused")
	require.ErrorContains(t, topic.refusal(), "connection refused")
	require.ErrorContains(t, o.check(), "connection refused")
	require.NoError(t, o.close(t.Context()))
}

// TestATopicOfABusThatIsGoneIsNoFault: requests that are under way may still use it. It is not
// opened again: that would create it.
func TestATopicOfABusThatIsGoneIsNoFault(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logged := observer.New(zap.WarnLevel)
		opened := 0
		open := func(context.Context, string) (Publisher, error) { opened++; return nowhere{}, nil }
		o, known, bus := topicsOf(t, zap.New(core), time.Second, nil, open)
		publisher, err := o.of(bus).topic.wait(t.Context())
		require.NoError(t, err)
		none := storetest.Snapshot(t, 2, buses()[1:], nil)
		known.Set(none)
		o.sweep(none)
		synctest.Wait()
		publisher.failIfClosed(messaging.ErrClosed)
		assert.Zero(t, logged.Len())

		// The broker may say that the topic is gone before the bus is swept.
		known.Set(storetest.Snapshot(t, 3, buses(), nil))
		publisher, err = o.of(bus).topic.wait(t.Context())
		require.NoError(t, err)
		known.Set(none)
		publisher.failIfClosed(messaging.ErrTopicTerminated)
		time.Sleep(time.Minute)
		assert.Equal(t, 2, opened)
		require.NoError(t, o.close(t.Context()))
	})
}

// TestATopicIsOpenedAgainWithoutARequest: an instance that is not ready gets no requests.
func TestATopicIsOpenedAgainWithoutARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func(context.Context, string) (Publisher, error) { return nowhere{}, nil }
		o, _, bus := topicsOf(t, zap.NewNop(), time.Second, nil, open)
		publisher, err := o.of(bus).topic.wait(t.Context())
		require.NoError(t, err)
		publisher.failIfClosed(messaging.ErrTopicTerminated)
		synctest.Wait()
		require.ErrorContains(t, o.check(), messaging.ErrTopicTerminated.Error())
		time.Sleep(openInterval)
		synctest.Wait()
		require.NoError(t, o.check())
		publisher.failIfClosed(messaging.ErrClosed) // a late outcome of the former publisher
		synctest.Wait()
		require.NoError(t, o.check())
		require.NoError(t, o.close(t.Context()))
	})
}

// TestAStopEndsWithItsContext: also while a topic cannot be closed.
func TestAStopEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := func(context.Context, string) (Publisher, error) { return unclosable{}, nil }
		o, _, bus := topicsOf(t, zap.NewNop(), time.Second, nil, open)
		_, err := o.of(bus).topic.wait(t.Context())
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begun := time.Now()
		require.ErrorIs(t, o.close(ctx), context.DeadlineExceeded)
		assert.Equal(t, time.Second, time.Since(begun))
	})
}

// unclosable closes when the time for that is over.
type unclosable struct{ nowhere }

func (unclosable) Close(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
