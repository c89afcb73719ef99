package pigeonhole

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// idle is a source from which nothing comes.
type idleSource struct{}

func (idleSource) Run(ctx context.Context, _ *pipeline.Set) error { <-ctx.Done(); return nil }
func (idleSource) Lag(context.Context) (int64, error)             { return 0, nil }

// patient is a sink, and one of dead letters, that takes its time for what is well.
type slowSink struct {
	lastMessageSink
	err error
}

func (p *slowSink) Send(_ context.Context, _ string, m *message.Message, done func(error)) {
	if string(m.Value) == "ill" {
		done(p.err)
		return
	}
	time.AfterFunc(time.Second, func() { done(nil) })
}

// TestWhatIsTheMatterEndsWithItsPipeline: a route whose partition went to another process while it
// tried to send is ready, whether anything comes from another one or not.
func TestWhatIsTheMatterEndsWithItsPipeline(t *testing.T) {
	for name, busy := range map[string]bool{"nothing else": false, "another partition": true} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { endsWithItsPipeline(t, busy) }) })
	}
}

func endsWithItsPipeline(t *testing.T, busy bool) {
	t.Helper()
	core, logs := observer.New(zap.InfoLevel)
	r := leading(t, "b")
	r.log, r.source, r.phase = zap.New(core), idleSource{}, running
	r.sink, r.deadLetterSink = &slowSink{err: errors.New("it takes nothing")}, &slowSink{err: errors.New("they neither")}
	r.pipelines = r.newPipelines(InFlight{Messages: 10, Bytes: 1 << 20}, newMetrics(prometheus.NewRegistry()))
	watching, end := context.WithCancel(t.Context())
	defer end()
	go r.watch(watching)

	well := r.pipelines.Open("well", func(int64) error { return nil })
	defer well.Abandon()
	var offers sync.WaitGroup
	offering, enough := context.WithCancel(t.Context())
	defer enough()
	if busy {
		offers.Go(func() {
			for n := int64(0); offering.Err() == nil; n++ {
				assert.NoError(t, well.Offer(t.Context(), &message.Message{}, n))
				time.Sleep(300 * time.Millisecond)
			}
		})
	}
	time.Sleep(5 * time.Second) // it is well before the other is ill
	ill := r.pipelines.Open("ill", func(int64) error { return nil })
	defer ill.Abandon()
	offered, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for n, hops := range [][]string{make([]string, maxHops), nil} { // the first is refused
		require.NoError(t, ill.Offer(offered, &message.Message{Value: []byte("ill"), Hops: hops}, int64(n)))
	}
	time.Sleep(time.Minute)
	assert.Equal(t, "dead letters: they neither, sending: it takes nothing", strings.Join(r.status().Unhealthy, ", "))
	ill.Abandon()
	assert.Empty(t, r.status().Unhealthy)
	assert.Zero(t, logs.FilterMessage("recovered").Len(), "nobody knows")

	r.report("sink.pulsar", errors.New("unavailable"))
	time.Sleep(2 * lagInterval)
	assert.Equal(t, busy, r.pipelines.State().InFlight > 0)
	assert.Equal(t, "sink.pulsar: unavailable", strings.Join(r.status().Unhealthy, ", "), "it is not about messages")
	enough()
	offers.Wait()
	require.NoError(t, well.Close(t.Context()))
}

// TestResumingThatIsGivenUpIsHealthy: the partition is another process' then.
func TestResumingThatIsGivenUpIsHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := leading(t, "b")
		r.resumableSink = resumes(func() (int64, bool, error) { return 0, false, errors.New("unavailable") })
		prepare, _ := r.newPrepare()
		ctx, giveUp := context.WithCancel(t.Context())
		go func() {
			time.Sleep(5 * time.Second)
			r.mu.Lock()
			assert.Equal(t, []string{"resuming: unavailable"}, r.unhealthyParts())
			r.mu.Unlock()
			giveUp()
		}()
		_, _, err := prepare(ctx, &message.Message{From: message.From{Topic: "a"}})
		require.ErrorIs(t, err, context.Canceled)
		assert.Empty(t, r.unhealthyParts())
	})
}
