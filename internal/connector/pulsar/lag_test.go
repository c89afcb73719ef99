package pulsar

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

func newSource(t *testing.T, url, adminURL, topic string, o connector.Options) *Source {
	t.Helper()
	cfg := DefaultSourceConfig()
	cfg.URL, cfg.AdminURL, cfg.Subscription, cfg.Topics = url, adminURL, "bridge", []string{topic}
	cfg.AckEvery, cfg.DrainTimeout = 10*time.Millisecond, 100*time.Millisecond
	s := cfg.NewSource(o).(*Source)
	return s
}

// The lag counts what the pipelines hold, and falls as they commit.
func TestLag(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	client := dial(t, messaging.Config{URL: srv.URL()})
	ns := srv.Namespace(t)
	for name, partitions := range map[string]int{"plain": 0, "partitioned": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := srv.Topic(t, ns, partitions)
			publish(t, client, topic, 0, 60, false)
			s := newSource(t, srv.URL(), srv.AdminURL(), topic, connector.Options{})
			lag, err := s.Lag(testContext(t))
			require.ErrorIs(t, err, errNotRunning)
			require.EqualValues(t, -1, lag)

			var h holding
			pipelines := pipelinesTo(&h, "to")
			source := start(t, func(ctx context.Context) error { return s.Run(ctx, pipelines) })
			waits := func(want int64) {
				waitFor(t, "lag", func() bool { got, err := s.Lag(context.Background()); return err == nil && got == want })
			}
			waits(60)
			waitFor(t, "all are under way", func() bool { return len(h.all()) == 60 })
			all := h.all()
			for _, c := range all[:25] {
				c.done(nil) // the first of each partition: each pipeline sends in order
			}
			waits(35)
			for _, c := range all[25:] {
				c.done(nil)
			}
			waits(0)
			source.stop(t)
			lag, err = s.Lag(testContext(t))
			require.ErrorIs(t, err, errNotRunning)
			require.EqualValues(t, -1, lag)
		})
	}
}

// Without an address nothing is asked and nothing is said; with a wrong one it is said
// once.
func TestLagIsNotKnown(t *testing.T) {
	t.Parallel()
	srv := stack.Pulsar(t)
	topic := srv.Topic(t, srv.Namespace(t), 0)
	page := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(page.Close)
	for name, test := range map[string]struct {
		adminURL, says string
		lines          int
	}{
		"no address":    {"", "no admin_url is set", 0},
		"wrong address": {page.URL, "404 Not Found", 1},
	} {
		t.Run(name, func(t *testing.T) {
			core, logged := observer.New(zapcore.WarnLevel)
			s := newSource(t, srv.URL(), test.adminURL, topic, connector.Options{Log: zap.New(core)})
			pipelines := pipelinesTo(&holding{}, "to")
			source := start(t, func(ctx context.Context) error { return s.Run(ctx, pipelines) })
			// Subscribed, that is: the client library leaves a connection behind that is being made
			// when it closes.
			waitFor(t, "it runs", func() bool { return len(srv.Stats(t, topic).Subscriptions["bridge"].Consumers) == 1 })
			for range 3 {
				lag, err := s.Lag(testContext(t))
				require.ErrorContains(t, err, test.says)
				require.EqualValues(t, -1, lag)
			}
			require.Equal(t, test.lines, logged.FilterMessage("cannot get the lag").Len())
			source.stop(t)
		})
	}
}
