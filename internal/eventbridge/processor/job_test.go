package processor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// ended waits for the end of a subscriber's job.
func (w *world) ended(p *Processor, name string) (j Job) {
	w.t.Helper()
	w.eventually("the job ends", func() bool {
		var err error
		j, err = p.Job(busName, name)
		require.NoError(w.t, err)
		return j.State != JobRunning
	})
	return j
}

func TestDeadLettersGoBack(t *testing.T) {
	for _, order := range []registry.Order{registry.OrderNone, registry.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := newSubscriber("s", order)
			s.Delivery.Retry.MaxAttempts = 1
			s.Delivery.Breaker.Failures = 0
			w := newWorld(t, 1, s)
			down := atomic.Bool{}
			down.Store(true)
			f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
				switch {
				case !down.Load():
					return delivered()
				case strings.HasPrefix(d.Event.ID, "x"):
					return target.Result{Verdict: target.Refused, Err: fmt.Errorf("no %s here", d.Event.ID)}
				}
				return retryResult()
			})
			p, _ := w.processor(testConfig())
			_, err := p.Job(busName, "s")
			require.ErrorIs(t, err, ErrNoJob)
			_, err = p.Redrive(busName, "unknown", RedriveOptions{})
			require.ErrorIs(t, err, ErrNoSubscriber)
			ids := slices.Concat(numbered("e", 30), numbered("x", 10))
			w.send("s", "k", ids...)
			w.eventually("all are dead letters", func() bool { return len(w.deadLetters("s")) == 40 })
			down.Store(false)

			j, err := p.Redrive(busName, "s", RedriveOptions{Reason: " here", DryRun: true})
			require.NoError(t, err)
			assert.Equal(t, JobRunning, j.State)
			j = w.ended(p, "s")
			assert.Equal(t, []any{JobDone, int64(40), int64(10), int64(0)}, []any{j.State, j.Read, j.Chosen, j.Published}, j.Error)

			_, err = p.Redrive(busName, "s", RedriveOptions{Reason: "no x", Type: "a", From: time.Now().Add(-time.Hour)})
			require.NoError(t, err)
			_, err = p.Redrive(busName, "s", RedriveOptions{})
			require.ErrorIs(t, err, ErrJobRunning)
			j = w.ended(p, "s")
			assert.Equal(t, []any{JobDone, int64(10)}, []any{j.State, j.Published}, j.Error)
			w.gets(f, ids[30:])

			_, err = p.Redrive(busName, "s", RedriveOptions{To: time.Now().Add(-time.Hour)})
			require.NoError(t, err)
			assert.Zero(t, w.ended(p, "s").Published)
			_, err = p.Redrive(busName, "s", RedriveOptions{Rate: 20})
			require.NoError(t, err)
			began := time.Now()
			assert.EqualValues(t, 30, w.ended(p, "s").Published)
			assert.Greater(t, time.Since(began), time.Second)
			w.gets(f, slices.Concat(ids[30:], ids[:30]))
		})
	}
}

func TestPastEventsComeAgain(t *testing.T) {
	for _, order := range []registry.Order{registry.OrderNone, registry.OrderGroup} {
		t.Run(string(order), func(t *testing.T) {
			t.Parallel()
			s := newSubscriber("s", order)
			s.Rules[0].Pattern = []byte(`{"type":["a"]}`)
			w := newWorld(t, 2, s)
			f := w.target("s", nil)
			p, _ := w.processor(testConfig())
			in, err := w.client.Publisher(t.Context(), w.topics.Events(busName), messaging.Business())
			require.NoError(t, err)
			publish := func(ids []string, kind string) {
				for i, id := range ids {
					key := fmt.Sprint("k", i%5)
					require.NoError(t, in.Publish(t.Context(), &messaging.Record{Key: key, Payload: testEvent(id, kind, key)}))
				}
			}
			early, wanted, late := numbered("early", 50), numbered("wanted", 100), numbered("late", 50)
			publish(early, "a")
			from := time.Now()
			time.Sleep(5 * time.Millisecond) // publish times are milliseconds
			publish(wanted, "a")
			publish(numbered("other", 30), "b")
			to := time.Now()
			time.Sleep(5 * time.Millisecond)
			publish(late, "a")

			_, err = p.Replay(busName, "s", ReplayOptions{From: from.Truncate(time.Millisecond).Add(time.Millisecond), To: to, DryRun: true})
			require.NoError(t, err)
			j := w.ended(p, "s")
			assert.Equal(t, []any{JobDone, int64(130), int64(100), int64(0)}, []any{j.State, j.Read, j.Chosen, j.Published}, j.Error)
			_, err = p.Replay(busName, "s", ReplayOptions{From: from.Truncate(time.Millisecond).Add(time.Millisecond), To: to})
			require.NoError(t, err)
			j = w.ended(p, "s")
			assert.EqualValues(t, 100, j.Published, j.Error)
			w.gets(f, wanted)
			if order.Ordered() {
				last := map[int]int{}
				for _, id := range f.delivered() {
					var n int
					_, err := fmt.Sscanf(id, "wanted%d", &n)
					require.NoError(t, err)
					before, ok := last[n%5]
					assert.True(t, !ok || before < n, "of a key in their order")
					last[n%5] = n
				}
			}

			_, err = p.Replay(busName, "s", ReplayOptions{Rate: 5})
			require.NoError(t, err)
			w.eventually("it has begun", func() bool {
				j, err := p.Job(busName, "s")
				return err == nil && j.Published > 1
			})
			_, err = p.CancelJob(busName, "s")
			require.NoError(t, err)
			j = w.ended(p, "s")
			assert.Equal(t, JobCanceled, j.State)
			assert.Less(t, j.Published, int64(100))
		})
	}
}
