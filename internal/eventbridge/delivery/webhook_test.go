package delivery

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/test/await"
)

// endpoint is a webhook's.
type endpoint struct {
	*httptest.Server
	mu   sync.Mutex
	ids  map[string][]string // of the header webhook-id, by the event's id
	last map[string]time.Time
}

func newEndpoint(t *testing.T, answer func(w http.ResponseWriter, r *http.Request, id string, attempt int)) *endpoint {
	t.Helper()
	e := &endpoint{ids: make(map[string][]string), last: make(map[string]time.Time)}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		id := r.Header.Get("ce-id")
		e.mu.Lock()
		e.ids[id] = append(e.ids[id], r.Header.Get("webhook-id"))
		attempt := len(e.ids[id])
		e.mu.Unlock()
		answer(w, r, id, attempt)
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *endpoint) attempts(id string) []string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]string(nil), e.ids[id]...)
}

// The whole way with real targets: a webhook that fails, is slow, says when to come again, refuses,
// and is gone.
func TestWebhooks(t *testing.T) {
	t.Parallel()
	e := newEndpoint(t, func(w http.ResponseWriter, r *http.Request, id string, attempt int) {
		kind, _, _ := strings.Cut(id, "-")
		switch {
		case kind == "fails" && attempt < 3:
			w.WriteHeader(http.StatusInternalServerError)
		case kind == "slow" && attempt == 1:
			<-r.Context().Done() // the attempt is over
		case kind == "later" && attempt == 1:
			w.Header().Set("Retry-After", "2")
			w.WriteHeader(http.StatusServiceUnavailable)
		case kind == "refuses":
			w.WriteHeader(http.StatusBadRequest)
		case kind == "gone":
			w.WriteHeader(http.StatusGone)
		default:
			w.WriteHeader(http.StatusNoContent)
		}
	})
	s, slow := newSubscriber("s", model.OrderNone), newSubscriber("slow", model.OrderNone)
	s.Delivery.Timeout = model.Duration(await.Patience)
	s.Target = model.Target{Webhook: &model.Webhook{URL: e.URL, Mode: model.ModeBinary}}
	slow.Delivery.Timeout, slow.Target = model.Duration(300*time.Millisecond), s.Target
	w := newFixture(t, 1, s, slow)
	o := target.Options{Config: target.Config{}, Topics: w.topics, Log: zaptest.NewLogger(t)}
	o.Config.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
	factory, err := target.NewFactory(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, factory.Close(context.Background())) })
	w.factory = factory
	p, _ := w.processor(testConfig())
	began := time.Now()
	w.send("s", "", "plain-1", "fails-1", "later-1", "refuses-1")
	w.send("slow", "", "slow-1")
	for id, attempts := range map[string]int{"plain-1": 1, "fails-1": 3, "slow-1": 2, "later-1": 2} {
		w.eventually(id, func() bool { return len(e.attempts(id)) >= attempts })
	}
	assert.Greater(t, time.Since(began), 2*time.Second, "Retry-After is honoured")
	w.eventually("one is refused", func() bool { return len(w.deadLetters("s")) == 1 })
	assert.Contains(t, string(w.deadLetters("s")[0].Payload), "refuses-1")
	assert.Contains(t, w.deadLetters("s")[0].Reason, "400")
	ids := map[string]bool{}
	for _, id := range []string{"plain-1", "fails-1", "slow-1", "later-1", "refuses-1"} {
		all := e.attempts(id)
		ids[all[0]] = true
		for _, one := range all {
			assert.Equal(t, all[0], one, "it is the same in every attempt")
		}
	}
	assert.Len(t, ids, 5)

	w.send("s", "", "gone-1")
	w.eventually("it is disabled", func() bool { return w.sub("s").State == model.Disabled })
	w.eventually("it stops", func() bool { return !p.Status(busName, "s").Delivering })
	statuses := map[int]bool{}
	for _, a := range p.Attempts(busName, "s") {
		statuses[a.Status] = true
	}
	assert.Equal(t, map[int]bool{204: true, 500: true, 503: true, 400: true, 410: true}, statuses)
	w.eventually("what was slow is delivered", func() bool {
		attempts := p.Attempts(busName, "slow")
		return len(attempts) > 0 && attempts[0].Status == 204
	})
	first := p.Attempts(busName, "slow")
	assert.Equal(t, []any{0, target.ReasonTimeout}, []any{first[len(first)-1].Status, first[len(first)-1].Reason})
}
