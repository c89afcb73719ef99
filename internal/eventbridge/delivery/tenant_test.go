package delivery

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Two tenants may use the same source and id. Receivers know their events apart by webhook-id, in
// the first delivery, after a redrive and in a replay.
func TestTheWebhookIDDependsOnTheTenant(t *testing.T) {
	t.Parallel()
	s := newSubscriber("s", model.OrderNone)
	s.Rules[0].Pattern = []byte(`{"type":["a"]}`)
	w := newFixture(t, 1, s)
	var accept atomic.Bool
	ids := make(chan string, 100)
	f := w.target("s", func(_ context.Context, d target.Delivery) target.Result {
		ids <- d.Event.WebhookID()
		if !accept.Load() {
			return target.Result{Verdict: target.Refused}
		}
		return target.Result{Verdict: target.Delivered}
	})
	for _, topic := range []string{w.topics.Send(w.sub("s")), w.topics.Events(busName)} {
		in, err := w.client.Publisher(t.Context(), topic, messaging.Business())
		require.NoError(t, err)
		for _, tenant := range []string{"shop", "partner"} {
			require.NoError(t, in.Publish(t.Context(), &messaging.Record{
				Payload: testEvent("order-43", "a", ""), Properties: map[string]string{"tenant": tenant},
			}))
		}
	}
	p, _ := w.processor(testConfig())
	two := func() []string {
		t.Helper()
		found := []string{<-ids, <-ids}
		require.NotEqual(t, found[0], found[1])
		return found
	}
	first := two()
	w.eventually("both are refused", func() bool { return len(w.deadLetters("s")) == 2 })
	accept.Store(true)
	_, err := p.Redrive(t.Context(), busName, "s", RedriveOptions{})
	require.NoError(t, err)
	assert.ElementsMatch(t, first, two())
	w.ended(p, "s")
	_, err = p.Replay(t.Context(), busName, "s", ReplayOptions{})
	require.NoError(t, err)
	assert.ElementsMatch(t, first, two())
	w.ended(p, "s")
	w.gets(f, []string{"order-43", "order-43", "order-43", "order-43"})
}
