package fakebroker_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/backoff"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/fakebroker"
	"github.com/aviaryhq/aviary/test/leak"
)

func TestMain(m *testing.M) {
	// A producer that the server closed for good keeps its timeout loop for one more send timeout.
	leak.Main(m.Run, goleak.IgnoreTopFunction("github.com/apache/pulsar-client-go/pulsar.(*partitionProducer).failTimeoutMessages"))
}

// testContext ends long before go test's own timeout, so that a wait that fails says what it waited
// for.
func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	t.Cleanup(cancel)
	return ctx
}

func newClient(t *testing.T, s *fakebroker.Server) pulsar.Client {
	t.Helper()
	client, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:               s.URL(),
		ConnectionTimeout: await.Patience,
		OperationTimeout:  await.Patience,
		MemoryLimitBytes:  -1,
		Logger:            log.NewLoggerWithSlog(slog.New(slog.DiscardHandler)),
		MetricsRegisterer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

func newProducer(t *testing.T, client pulsar.Client, o pulsar.ProducerOptions) pulsar.Producer {
	t.Helper()
	if o.BackOffPolicyFunc == nil {
		o.BackOffPolicyFunc = func() backoff.Policy { return fastBackoff{} }
	}
	p, err := client.CreateProducer(o)
	require.NoError(t, err)
	t.Cleanup(p.Close)
	return p
}

// oneByOne sends every message as a batch of its own. DisableBatching would do that too, but the
// client has a data race between unbatched sends and reconnecting (the field encryptor,
// producer_partition.go:358 and :837 of v0.21.0), so tests that reconnect while they send use this.
func oneByOne(topic string) pulsar.ProducerOptions {
	return pulsar.ProducerOptions{Topic: topic, BatchingMaxMessages: 1, BatchingMaxPublishDelay: time.Millisecond}
}

func newConsumer(t *testing.T, client pulsar.Client, o pulsar.ConsumerOptions) pulsar.Consumer {
	t.Helper()
	if o.BackOffPolicyFunc == nil {
		o.BackOffPolicyFunc = func() backoff.Policy { return fastBackoff{} }
	}
	c, err := client.Subscribe(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// fastBackoff spares the tests the client's 100 ms before each attempt to reconnect.
type fastBackoff struct{}

func (fastBackoff) Next() time.Duration       { return time.Millisecond }
func (fastBackoff) IsMaxBackoffReached() bool { return false }
func (fastBackoff) Reset()                    {}

// sends collects the outcomes of SendAsync.
type sends struct {
	mu      sync.Mutex
	results map[string]error
	calls   int
	changed chan struct{}
}

func newSends() *sends {
	return &sends{results: map[string]error{}, changed: make(chan struct{}, 1)}
}

func (r *sends) send(ctx context.Context, p pulsar.Producer, payload string) {
	p.SendAsync(ctx, &pulsar.ProducerMessage{Payload: []byte(payload)},
		func(_ pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
			r.mu.Lock()
			r.results[payload] = err
			r.calls++
			r.mu.Unlock()
			select {
			case r.changed <- struct{}{}:
			default:
			}
		})
}

func (r *sends) done(payload string) (error, bool) { //nolint:revive // the error is the subject, not a failure
	r.mu.Lock()
	defer r.mu.Unlock()
	err, ok := r.results[payload]
	return err, ok
}

func (r *sends) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls
}

func (r *sends) wait(ctx context.Context, n int) error {
	for r.count() < n {
		select {
		case <-r.changed:
		case <-ctx.Done():
			return fmt.Errorf("%d of %d callbacks: %w", r.count(), n, ctx.Err())
		}
	}
	return nil
}

func payloads(messages []fakebroker.Message) []string {
	out := make([]string, len(messages))
	for i, m := range messages {
		out[i] = string(m.Payload)
	}
	return out
}

func receiveAll(ctx context.Context, t *testing.T, c pulsar.Consumer, n int) []pulsar.Message {
	t.Helper()
	out := make([]pulsar.Message, 0, n)
	for range n {
		m, err := c.Receive(ctx)
		require.NoError(t, err, "after %d of %d messages", len(out), n)
		out = append(out, m)
	}
	return out
}

func numbered(n int) []fakebroker.Message {
	out := make([]fakebroker.Message, n)
	for i := range out {
		out[i] = fakebroker.Message{Payload: fmt.Appendf(nil, "m%d", i)}
	}
	return out
}
