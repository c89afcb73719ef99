package pigeonhole

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// stubborn is a source and a sink of a route whose messages are not stored. Both wait at a
// stop as long as they may.
type stubborn struct {
	route           *route
	began           time.Time
	drained, closed time.Duration // how long they waited
	unavailable     chan struct{} // closed when the destination stores again; nil: never
	sent            chan func(error)
}

func (s *stubborn) Lag(context.Context) (int64, error) { return 0, nil }
func (s *stubborn) PlaceName(to string) string         { return to }

func (s *stubborn) Send(_ context.Context, _ string, _ *message.Message, done func(error)) {
	s.sent <- done
}

type stubbornSource struct{ *stubborn }

func (s stubbornSource) Run(ctx context.Context, pipelines *pipeline.Set) error {
	l := pipelines.Open("one", func(int64) error { return nil })
	if err := l.Offer(ctx, &message.Message{}, 1); err != nil {
		return err
	}
	<-ctx.Done()
	s.began = time.Now()
	_ = l.Close(s.route.sourceLimit)
	s.drained = time.Since(s.began)
	return nil
}

func (s *stubborn) Run(ctx context.Context) error {
	<-ctx.Done()
	select {
	case <-s.unavailable:
	case <-s.route.sinkLimit.Done():
	}
	s.closed = time.Since(s.began)
	return nil
}

func newStubborn(t *testing.T, unavailable chan struct{}) *stubborn {
	t.Helper()
	cfg := parse(t, "routes:\n"+routeTo("a", "x"))
	changes, err := cfg.Routes[0].newTransform()
	require.NoError(t, err)
	r := newRoute(cfg, cfg.Routes[0], changes, zap.NewNop(), newMetrics(prometheus.NewRegistry()))
	s := &stubborn{route: r, unavailable: unavailable, sent: make(chan func(error), 10)}
	r.source, r.sink = stubbornSource{s}, s
	r.pipelines = pipeline.NewSet(pipeline.Config{Messages: 10, Bytes: 1 << 20, CommitEvery: time.Second, MinBackoff: time.Second, MaxBackoff: time.Second}, pipeline.Route{
		Sink: s, Prepare: func() (pipeline.Prepare, func()) {
			return func(context.Context, *message.Message) (string, bool, error) { return "x", true, nil }, nil
		}, Stop: r.fail, Report: func(error) {}, Log: r.log, Metrics: newMetrics(prometheus.NewRegistry()).pipelines.Route("a"),
	})
	return s
}

// TestStopDividesItsTime: with the destination unavailable the source gives up in time for the
// sinks, and both in time for the process, however little that is.
func TestStopDividesItsTime(t *testing.T) {
	for _, all := range []time.Duration{30 * time.Second, 3 * time.Second} {
		t.Run(all.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStubborn(t, nil)
				s.route.start()
				<-s.sent
				ctx, cancel := context.WithTimeout(t.Context(), all)
				defer cancel()
				require.NoError(t, s.route.stop(ctx))
				assert.Equal(t, all*2/3, s.drained.Round(time.Millisecond))
				assert.Equal(t, all*9/10, s.closed.Round(time.Millisecond))
			})
		})
	}
}

// TestStopDrains: what is stored meanwhile ends the waiting.
func TestStopDrains(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		back := make(chan struct{})
		s := newStubborn(t, back)
		s.route.start()
		done := <-s.sent
		time.AfterFunc(time.Second, func() { done(nil); close(back) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, s.route.stop(ctx))
		assert.Equal(t, time.Second, s.drained)
		assert.Equal(t, time.Second, s.closed)
	})
}
