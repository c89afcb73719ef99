package processor

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap/zaptest"

	"github.com/aviaryhq/aviary/internal/eventbridge/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
)

// A receiver fails at each of 50 events, and takes another one: that one arrives, with the defaults
// of a subscriber. The others are attempted again until the receiver takes them, too.
func TestEventsThatFailDoNotKeepBackAnother(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		order model.Order
		key   func(i int) string // of the i-th event that fails
	}{
		"none":             {model.OrderNone, func(int) string { return "" }},
		"group, one key":   {model.OrderGroup, func(int) string { return "bad" }},
		"group, many keys": {model.OrderGroup, func(i int) string { return fmt.Sprint("bad", i) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var takesAll atomic.Bool
			var mu sync.Mutex
			failed, taken := make(map[string]int), make(map[string]int)
			e := newEndpoint(t, func(w http.ResponseWriter, _ *http.Request, id string, _ int) {
				mu.Lock()
				defer mu.Unlock()
				if strings.HasPrefix(id, "bad") && !takesAll.Load() {
					failed[id]++
					w.WriteHeader(http.StatusInternalServerError)
					return
				}
				taken[id]++
				w.WriteHeader(http.StatusNoContent)
			})
			got := func(ids ...string) bool {
				mu.Lock()
				defer mu.Unlock()
				return !slices.ContainsFunc(ids, func(id string) bool { return taken[id] == 0 })
			}
			s := model.NewSubscriber(busName, "s")
			s.Order = c.order
			s.Rules = newSubscriber("s", c.order).Rules
			s.Target = model.Target{Webhook: &model.Webhook{URL: e.URL, Mode: model.ModeBinary}}
			s.Fill()
			w := newWorld(t, 1, s)
			o := target.Options{Config: target.DefaultConfig(), Topics: w.topics, Log: zaptest.NewLogger(t)}
			o.Config.Allow = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}
			factory, err := target.NewFactory(o)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, factory.Close(context.Background())) })
			w.factory = factory
			w.processor(testConfig())
			bad := numbered("bad", 50)
			for i, id := range bad {
				w.send("s", c.key(i), id)
			}
			w.send("s", "good", "good")
			w.eventually("the good one arrives", func() bool { return got("good") })
			mu.Lock()
			assert.NotEmpty(t, failed, "others have failed")
			mu.Unlock()

			takesAll.Store(true)
			w.eventually("the others arrive, at a later attempt", func() bool { return got(bad...) })
			assert.Empty(t, w.deadLetters("s"))
			mu.Lock()
			defer mu.Unlock()
			for _, id := range bad {
				assert.Greater(t, len(e.attempts(id)), failed[id], id)
			}
		})
	}
}
