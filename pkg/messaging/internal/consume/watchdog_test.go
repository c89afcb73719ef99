package consume

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
)

func TestWatchdogNamesAStuckHandler(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		m := newMetrics(prometheus.NewRegistry())
		r := &run{
			cfg: DefaultConsumerConfig(), log: zap.New(core), metrics: m.of("sub"),
			sched: DefaultConsumerConfig().derived().scheduler(false, nil), workers: []*worker{{}},
		}
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			r.watch(stop)
			close(ended)
		}()
		w := r.workers[0]
		d := &task{Delivery: &record.Delivery{Topic: "orders"}}
		d.Owner, d.Group = d, new(schedule.Group)
		r.sched.Push([]*schedule.Item{&d.Item})
		require.True(t, r.sched.Next(&w.Worker, 0, 0))
		require.Same(t, &d.Item, w.Claim())
		w.Start(time.Now())
		time.Sleep(59 * time.Second)
		synctest.Wait()
		require.Zero(t, logs.Len())
		time.Sleep(3 * time.Second)
		synctest.Wait()
		require.Equal(t, 1, int(testutil.ToFloat64(r.metrics.stuck)))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 1, logs.Len(), "one line")
		entry := logs.All()[0]
		require.Equal(t, "handler is stuck", entry.Message)
		require.Equal(t, "orders", entry.ContextMap()["topic"])
		require.GreaterOrEqual(t, entry.ContextMap()["elapsed"], time.Minute)

		w.Idle()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, testutil.ToFloat64(r.metrics.stuck))
		require.Equal(t, "stuck message finished", logs.All()[1].Message)
		require.GreaterOrEqual(t, logs.All()[1].ContextMap()["elapsed"], time.Hour)
		r.sched.StopNow()
		close(stop)
		<-ended
	})
}

func TestWatchdogNamesAMessageWithoutAVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zapcore.WarnLevel)
		m := newMetrics(prometheus.NewRegistry())
		r := &run{
			cfg: DefaultConsumerConfig(), log: zap.New(core), metrics: m.of("sub"),
			sched: DefaultConsumerConfig().derived().scheduler(true, nil), workers: []*worker{{}},
			completions: &completionQueue{wake: make(chan struct{}, 1)},
		}
		var pending PendingDelivery
		r.async = func(_ context.Context, _ *record.Delivery, p PendingDelivery) { pending = p }
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() {
			r.watch(stop)
			close(ended)
		}()
		s := &session{completions: r.completions}
		d := &task{Delivery: &record.Delivery{Topic: "orders"}, session: s}
		d.Owner, d.Group = d, &s.Group
		r.sched.Push([]*schedule.Item{&d.Item})
		w := r.workers[0]
		require.True(t, r.sched.Next(&w.Worker, 0, 0))
		require.Same(t, &d.Item, w.Claim())
		r.hand(w, d)
		time.Sleep(time.Minute + 2*time.Second)
		synctest.Wait()
		require.Equal(t, 1, int(testutil.ToFloat64(r.metrics.stuck)))
		require.Equal(t, "message has no verdict", logs.All()[0].Message)
		require.Equal(t, "orders", logs.All()[0].ContextMap()["topic"])
		pending.Complete(nil)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		require.Zero(t, testutil.ToFloat64(r.metrics.stuck))

		r.hand(w, d) // gets no verdict until the end
		time.Sleep(time.Minute + 2*time.Second)
		synctest.Wait()
		require.Equal(t, 1, int(testutil.ToFloat64(r.metrics.stuck)))
		r.sched.StopNow()
		close(stop)
		<-ended
		require.Zero(t, testutil.ToFloat64(r.metrics.stuck), "a run that has ended has nothing stuck")
	})
}
