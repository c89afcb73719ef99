//go:build !race

// The race detector takes ten times as much processor time.

package eventbridge_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestAnEngineWithTenThousandRulesIsReadySoon starts a whole process with the role engine on a
// registry of 10,000 rules, and waits until it has read all, matches by them and has its partition.
// How long that takes depends on who else is on the machine. So what is asserted is that it takes
// less than 5 s of processor time: where nobody else is, it is no longer than that. The time by the
// clock is in the test's log.
func TestAnEngineWithTenThousandRulesIsReadySoon(t *testing.T) {
	const subscribers, rules = 100, 100
	srv := stack.Pulsar(t)
	topics := model.Topics{Namespace: srv.Namespace(t)}
	fill(t, srv, topics, subscribers, rules)

	began, used := time.Now(), processorTime(t)
	w := start(t, "EVENTBRIDGE_PULSAR_URL="+srv.URL(), "EVENTBRIDGE_PULSAR_ADMIN_URL="+srv.AdminURL(), "EVENTBRIDGE_TOPICS_NAMESPACE="+topics.Namespace,
		"EVENTBRIDGE_ROLES=[engine]")
	answer := ""
	require.Eventually(t, func() bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/v1/instances", nil)
		require.NoError(t, err)
		_, answer = send(t, req)
		return strings.Contains(answer, fmt.Sprintf(`"revision":%d`, subscribers+1)) && strings.Contains(answer, `"partitions":{"orders":[0]}`)
	}, await.Patience, 10*time.Millisecond, "%s", &answer)
	took := time.Since(began)
	used = processorTime(t) - used
	t.Logf("%d rules: ready after %s, %s of processor time", subscribers*rules, took.Round(time.Millisecond), used.Round(time.Millisecond))
	require.Less(t, used, 5*time.Second)
}

// fill makes a registry of one bus with subscribers that have rules of each kind.
func fill(t *testing.T, srv *stack.PulsarServer, topics model.Topics, subscribers, rules int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*await.Patience)
	defer cancel()
	client, err := messaging.Dial(ctx, messaging.Config{URL: srv.URL()})
	require.NoError(t, err)
	registry, err := store.Open(ctx, client, topics, store.Options{})
	require.NoError(t, err)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- registry.Run(running) }()
	bus := model.NewBus("orders")
	_, _, err = registry.PutBus(ctx, bus, store.Condition{})
	require.NoError(t, err)
	var all errgroup.Group
	all.SetLimit(10)
	for i := range subscribers {
		all.Go(func() error {
			s := model.NewSubscriber("orders", fmt.Sprintf("s%d", i))
			s.Target.Log = &model.LogTarget{}
			for n := range rules {
				s.Rules = append(s.Rules, model.Rule{Name: fmt.Sprintf("r%d", n), Pattern: json.RawMessage(fmt.Sprintf(
					`{"source":["/shop/%d"],"type":[{"prefix":"order.%d."},{"suffix":".%d"},{"wildcard":"a*%d"}],"data":{"total":[{"numeric":[">",%d]}],"country":[{"anything-but":["DE","FR"]}]}}`,
					i, n, n, i, n))})
			}
			_, _, err := registry.PutSubscriber(ctx, s, store.Condition{})
			return err
		})
	}
	require.NoError(t, all.Wait())
	stop()
	require.ErrorIs(t, <-ended, context.Canceled)
	require.NoError(t, registry.Close(ctx))
	require.NoError(t, client.Close(ctx))
}

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var used syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
