package pigeonhole

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
	"github.com/aviaryhq/aviary/test/await"
)

// parse returns the configuration of a text.
func parse(t *testing.T, text string) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pigeonhole.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := loadFile(file)
	require.NoError(t, err)
	return loaded.Config
}

// routeTo is a route between servers that do not exist.
func routeTo(name, queue string) string {
	return fmt.Sprintf("- name: %s\n  source: {rabbitmq: {url: 'amqp://127.0.0.1:1/', queues: [{name: q}]}}\n  sink: {rabbitmq: {url: 'amqp://127.0.0.1:1/'}}\n  to: %s\n",
		name, queue)
}

// serve runs the routes of a text until the test ends.
func serve(t *testing.T, text string) *service {
	t.Helper()
	reg := prometheus.NewRegistry()
	s := &service{log: zap.NewNop(), metrics: newMetrics(reg), setMemoryNeed: func(int64) {}, routes: map[string]*route{}}
	t.Cleanup(func() { assert.NoError(t, s.stop(context.Background())) })
	require.NoError(t, s.apply(t.Context(), parse(t, text)))
	return s
}

// TestRoutesEndOnlyWhereTheFileSaysSo: a file that was cut off has no routes, too.
func TestRoutesEndOnlyWhereTheFileSaysSo(t *testing.T) {
	s := serve(t, "routes:\n"+routeTo("a", "x")+routeTo("b", "y"))
	a, b := s.find("a"), s.find("b")
	for _, cut := range []string{"name: pigeonhole\n", "name: pigeonhole\nroutes:\n", "{}"} {
		require.EqualError(t, s.apply(t.Context(), parse(t, cut)), "routes: must be given: to stop every route write routes: []")
		assert.Same(t, a, s.find("a"))
		assert.Same(t, b, s.find("b"))
	}
	require.NoError(t, s.apply(t.Context(), parse(t, "routes:\n"+routeTo("b", "y"))))
	assert.Nil(t, s.find("a"))
	assert.Same(t, b, s.find("b"), "as it was")
	require.NoError(t, s.apply(t.Context(), parse(t, "routes: []")))
	assert.Empty(t, s.all())
	require.NoError(t, s.apply(t.Context(), parse(t, "{}")), "there is nothing to stop")
}

// breaking is a source that panics when it runs, or when it is told to stop.
type breaking struct{ atOnce bool }

func (b breaking) Run(ctx context.Context, _ *pipeline.Set) error {
	if !b.atOnce {
		<-ctx.Done()
	}
	panic("broken")
}

func (breaking) Lag(context.Context) (int64, error) { return 0, nil }

// TestPanicOfARouteIsItsOwn: the others go on, and the process.
func TestPanicOfARouteIsItsOwn(t *testing.T) {
	s := serve(t, "routes:\n"+routeTo("a", "x"))
	for name, atOnce := range map[string]bool{"b": true, "c": false} {
		rc := s.find("a").cfg
		rc.Name = name
		r := newRoute(s.cfg, rc, s.find("a").transform, s.log, s.metrics)
		r.source, r.sink = breaking{atOnce: atOnce}, &lastMessageSink{} // a sink without a server has errors of its own
		s.mu.Lock()
		s.routes[name] = r
		s.mu.Unlock()
		r.start()
	}
	<-s.find("b").done
	assert.Equal(t, "failed", s.find("b").status().State)
	assert.Equal(t, "source: panic: broken", s.find("b").status().LastError)
	require.NoError(t, s.apply(t.Context(), parse(t, "routes:\n"+routeTo("a", "x"))))
	assert.Len(t, s.all(), 1)
	assert.NotEqual(t, "failed", s.find("a").status().State)
}

// TestStopDuringAChangeWaitsForTheRoutes: those that the change was about to end are
// still there to be stopped.
func TestStopDuringAChangeWaitsForTheRoutes(t *testing.T) {
	s := serve(t, "routes:\n"+routeTo("a", "x")+routeTo("b", "x"))
	a := s.find("a")
	release := make(chan struct{})
	held := &route{cfg: RouteConfig{Name: "held"}, phase: running, cancel: func() {}, done: release, pipelines: a.pipelines}
	s.mu.Lock()
	s.routes["held"] = held
	s.mu.Unlock()
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, s.apply(ctx, parse(t, "routes: []")), context.Canceled)
	assert.Len(t, s.all(), 3)
	close(release)
}

// TestPanicWhileRoutesLeaveIsAnError: the process can stop in order.
func TestPanicWhileRoutesLeaveIsAnError(t *testing.T) {
	s := serve(t, "routes:\n"+routeTo("a", "x"))
	done := make(chan struct{})
	close(done)
	broken := true
	odd := &route{cfg: RouteConfig{Name: "odd"}, phase: running, done: done, pipelines: s.find("a").pipelines, cancel: func() {
		if broken {
			panic("broken")
		}
	}}
	s.mu.Lock()
	s.routes["odd"] = odd
	s.mu.Unlock()
	var panicked *app.PanicError
	require.ErrorAs(t, s.apply(t.Context(), parse(t, "routes: []")), &panicked)
	assert.Contains(t, string(panicked.Stack), "service_test.go")
	broken = false
}

// TestReadinessSaysThatNothingIsReplicated: a route whose server is unavailable is no reason while
// another one works or is paused.
func TestReadinessSaysThatNothingIsReplicated(t *testing.T) {
	s := serve(t, "routes:\n"+routeTo("a", "x")+routeTo("b", "y")) // nobody listens there
	require.Eventually(t, func() bool {                            // each part says so in its own time
		err := s.check(t.Context())
		return err != nil && strings.HasPrefix(err.Error(), "nothing is replicated: a: sink.rabbitmq: ") && strings.Contains(err.Error(), "; b: sink.rabbitmq: ")
	}, await.Patience, 10*time.Millisecond)
	require.ErrorContains(t, s.check(t.Context()), "connection refused")
	s.find("b").pipelines.Pause()
	require.NoError(t, s.check(t.Context()), "as somebody wants it")
}

// TestMemoryFollowsTheRoutes: what each may hold counts, and again after each change.
func TestMemoryFollowsTheRoutes(t *testing.T) {
	const mib = 1 << 20
	var need int64
	s := serve(t, "routes: []")
	s.setMemoryNeed = func(n int64) { need = n }
	change := func(text string) int64 {
		t.Helper()
		require.NoError(t, s.apply(t.Context(), parse(t, text)))
		return need
	}
	none := change("routes: []")
	assert.Less(t, none, int64(64*mib))
	one := change("routes:\n" + routeTo("a", "x"))
	assert.Greater(t, one, none+128*mib, "the whole of in_flight, and the buffers")
	both := change("routes:\n" + routeTo("a", "x") + routeTo("b", "x"))
	assert.Greater(t, both, one)
	own := change("routes:\n" + routeTo("a", "x") + routeTo("b", "x") + "  in_flight: {bytes: 1GiB}\n")
	assert.Greater(t, own, both+1024*mib-64*mib, "a route's own bounds")
	assert.Equal(t, none, change("routes: []"))

	change("routes:\n" + routeTo("a", "x") + routeTo("b", "x"))
	assert.Equal(t, one, change("routes:\n"+routeTo("a", "x")), "one that did not change has the whole again")

	loaded, err := loadFile("../../configs/examples/pigeonhole.yaml")
	require.NoError(t, err)
	for _, r := range loaded.Config.Routes {
		bounds := InFlight{Messages: 1, Bytes: 2048 * mib} // enough for what is fetched ahead
		few := r.memory(bounds)
		assert.Greater(t, few, int64(2048*mib), "%s", r.Name)
		_, source := only(r.Source)
		switch source := source.(type) {
		case *kafka.SourceConfig:
			source.BufferBytes += 256 * mib
		case *rabbitmq.SourceConfig:
			source.PrefetchBytes += 256 * mib
		case *pulsar.SourceConfig:
			source.PrefetchBytes += 256 * mib
		}
		assert.GreaterOrEqual(t, r.memory(bounds), few+256*mib, "what %s fetches ahead", r.Name)
	}
}

// TestPauseSurvivesAReload that changes the route, and one that does not; a route that was not
// paused runs.
func TestPauseSurvivesAReload(t *testing.T) {
	registry := prometheus.NewRegistry()
	s := &service{log: zap.NewNop(), metrics: newMetrics(registry), setMemoryNeed: func(int64) {}, routes: map[string]*route{}}
	defer func() { require.NoError(t, s.stop(context.WithoutCancel(t.Context()))) }()
	nowhere := func(name string, messages int) RouteConfig {
		var rc RouteConfig
		rc.SetDefaults()
		source, sink := kafka.DefaultSourceConfig(), kafka.DefaultSinkConfig()
		source.Brokers, source.Group, source.Topics = []string{"127.0.0.1:1"}, "g", []string{"t"}
		sink.Brokers = []string{"127.0.0.1:1"}
		rc.Name, rc.To, rc.InFlight.Messages = name, "to", messages
		rc.Source, rc.Sink = SourceConfig{"kafka": &source}, SinkConfig{"kafka": &sink}
		return rc
	}
	reload := func(messages int) {
		cfg := DefaultConfig()
		cfg.Routes = []RouteConfig{nowhere("paused", messages), nowhere("other", messages)}
		require.NoError(t, s.apply(t.Context(), cfg))
	}
	reload(8)
	s.find("paused").pipelines.Pause()
	for _, messages := range []int{8, 9} {
		reload(messages)
		assert.True(t, s.find("paused").pipelines.Paused())
		assert.False(t, s.find("other").pipelines.Paused())
		assert.Equal(t, messages, s.find("paused").cfg.InFlight.Messages)
	}
	require.NoError(t, s.resume(s.find("paused")))
	reload(10)
	assert.False(t, s.find("paused").pipelines.Paused())
}

// TestSharesFollowTheRoutes: those of routes that did not change, too, which go on undisturbed.
func TestSharesFollowTheRoutes(t *testing.T) {
	s := serve(t, "routes:\n"+routeTo("a", "x"))
	a := s.find("a")
	share := func() (messages int, mib int64) {
		assert.Same(t, a, s.find("a"), "undisturbed")
		st := a.status()
		return st.MaxInFlight, st.MaxInFlightBytes >> 20
	}
	for _, step := range []struct {
		text     string
		messages int
		mib      int64
	}{
		{"routes:\n" + routeTo("a", "x"), 20_000, 128},
		{"routes:\n" + routeTo("a", "x") + routeTo("b", "x"), 10_000, 64},
		{"routes:\n" + routeTo("a", "x") + routeTo("b", "x") + routeTo("c", "x") + routeTo("d", "x"), 5_000, 32},
		{"in_flight: {messages: 800, bytes: 64MiB}\nroutes:\n" + routeTo("a", "x") + routeTo("b", "x"), 400, 32},
		{"routes:\n" + routeTo("a", "x"), 20_000, 128},
	} {
		require.NoError(t, s.apply(t.Context(), parse(t, step.text)))
		messages, mib := share()
		assert.Equal(t, step.messages, messages)
		assert.Equal(t, step.mib, mib)
	}
}

// TestMetricsCarryTheirRoute: those of one route's parts are told from another's, and go with it.
func TestMetricsCarryTheirRoute(t *testing.T) {
	reg := prometheus.NewRegistry()
	s := &service{log: zap.NewNop(), metrics: newMetrics(reg), setMemoryNeed: func(int64) {}, routes: map[string]*route{}}
	t.Cleanup(func() { assert.NoError(t, s.stop(context.Background())) })
	// series are the labels that a metric has values for.
	series := func(name string) (found []string) {
		families, err := reg.Gather()
		require.NoError(t, err)
		for _, family := range families {
			if family.GetName() != name {
				continue
			}
			for _, m := range family.GetMetric() {
				text := ""
				for _, l := range m.GetLabel() {
					text += l.GetName() + "=" + l.GetValue() + " "
				}
				found = append(found, strings.TrimSpace(text))
			}
		}
		return found
	}
	dead := "  dead_letter: {to: dead, sink: {rabbitmq: {url: 'amqp://127.0.0.1:1/'}}}\n"
	require.NoError(t, s.apply(t.Context(), parse(t, "routes:\n"+routeTo("a", "x")+routeTo("b", "x")+dead)))
	require.NoError(t, reg.Register(newCollector(s)))
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
	for _, name := range []string{"connections_total", "redelivered_total", "unroutable_total", "connected", "blocked"} {
		assert.Equal(t, []string{
			"role=dead_letter route=b", "role=sink route=a", "role=sink route=b", "role=source route=a", "role=source route=b",
		}, series("pigeonhole_rabbitmq_"+name), name)
	}
	require.NoError(t, s.apply(t.Context(), parse(t, "routes:\n"+routeTo("a", "x"))))
	assert.Equal(t, []string{"role=sink route=a", "role=source route=a"}, series("pigeonhole_rabbitmq_connected"))

	// A part that a changed route has no more would look as if it had lost its connection.
	toKafka := strings.Replace(routeTo("a", "x"), "sink: {rabbitmq: {url: 'amqp://127.0.0.1:1/'}}", "sink: {kafka: {brokers: ['127.0.0.1:1']}}", 1)
	require.NoError(t, s.apply(t.Context(), parse(t, "routes:\n"+toKafka)))
	assert.Equal(t, []string{"role=source route=a"}, series("pigeonhole_rabbitmq_connected"))
	// So would what a change brings that is refused.
	refused := parse(t, "routes:\n"+routeTo("a", "x")+routeTo("c", "x")+routeTo("d", "x"))
	refused.Routes[2].Filter = "("
	require.Error(t, s.apply(t.Context(), refused))
	assert.Equal(t, []string{"role=source route=a"}, series("pigeonhole_rabbitmq_connected"))
	assert.Equal(t, []string{"route=a"}, series("pigeonhole_stored_bytes_total"))
}
