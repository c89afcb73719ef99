package eventbridge

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
)

// The buses: one with partitions, and one whose events all have one order.
const (
	busMany = "many"
	busOne  = "one"
)

// waitTimeout is how long nothing may move before what is missing counts as lost. It begins anew with
// all progress.
const waitTimeout = 2 * time.Minute

// A role is a process of one role.
type role struct {
	*systems.Process
	name string
}

// fixture is a namespace with two buses, their subscribers, processes of each role, senders, and what
// has happened.
type fixture struct {
	t      testing.TB
	seed   uint64
	r      *rand.Rand // of the faults
	began  time.Time
	server *stack.PulsarServer
	ns     string
	topics model.Topics
	asker  *asker
	sink   *sink
	roles  map[string][]*role
	subs   []*subscriber
	ledger *ledger
	phase  atomic.Int64 // what events are stamped with when they are made

	mu     sync.Mutex
	events []string

	sending sync.WaitGroup
	enough  chan struct{}
	stop    func()
}

// newFixture starts n processes of each role, and makes buses and subscribers.
func newFixture(t testing.TB, server *stack.PulsarServer, n int, more ...*subscriber) *fixture {
	t.Helper()
	s := soak.Seed(t)
	ns := server.Namespace(t)
	w := &fixture{
		t: t, seed: s, r: rand.New(rand.NewPCG(s, 0)), began: time.Now(), server: server, ns: ns, topics: model.Topics{Namespace: ns},
		asker: newAsker(), ledger: newLedger(), roles: map[string][]*role{}, enough: make(chan struct{}),
	}
	w.stop = sync.OnceFunc(func() {
		close(w.enough)
		w.sending.Wait()
	})
	t.Cleanup(func() {
		t.Logf("what happened:\n%s", strings.Join(w.events, "\n"))
		if t.Failed() {
			t.Logf("what the engines said of partitions:\n%s", w.windows())
		}
	})
	require.NoError(t, server.Admin(t.Context(), http.MethodPost, "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	w.sink = newSink(t)
	for _, name := range []string{"preprocessor", "engine", "processor"} {
		for i := range n {
			w.run(name, i)
		}
	}
	t.Cleanup(w.stop) // before the processes are stopped
	for _, all := range w.roles {
		for _, r := range all {
			w.listens(r)
		}
	}
	w.define(append(subscribers(), more...))
	w.event("%d processes of each role are there", n)
	return w
}

// run starts a process of a role.
func (w *fixture) run(name string, i int) {
	w.t.Helper()
	instance := fmt.Sprintf("%s-%d", name, i)
	w.roles[name] = append(w.roles[name], &role{
		systems.Run(w.t, []string{"-roles=" + name}, []string{
			"EVENTBRIDGE_INSTANCE=" + instance, "EVENTBRIDGE_HTTP_LISTEN=127.0.0.1:0", "EVENTBRIDGE_ADMIN_LISTEN=127.0.0.1:0",
			"EVENTBRIDGE_PULSAR_URL=" + w.server.URL(), "EVENTBRIDGE_PULSAR_ADMIN_URL=" + w.server.AdminURL(), "EVENTBRIDGE_TOPICS_NAMESPACE=" + w.ns,
			"EVENTBRIDGE_TARGETS_ALLOW=[127.0.0.0/8]",
			// A busy machine is no reason to let events through that came before.
			"EVENTBRIDGE_ENGINE_DEDUP_REBUILD=5m",
		}),
		instance,
	})
}

// event notes what happened.
func (w *fixture) event(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, fmt.Sprintf("%s %7.3fs %s", time.Now().Format("15:04:05.000"), time.Since(w.began).Seconds(), fmt.Sprintf(format, args...)))
}

// windows are the lines of the engines about events that they read back.
func (w *fixture) windows() string {
	var lines []string
	for _, e := range w.roles["engine"] {
		for line := range strings.Lines(e.Log()) {
			if strings.Contains(line, "window of events") || strings.Contains(line, "a partition") {
				lines = append(lines, e.name+" "+strings.TrimSpace(line))
			}
		}
	}
	return strings.Join(lines, "\n")
}

// listens waits until a process that was started serves the API.
func (w *fixture) listens(r *role) {
	w.t.Helper()
	systems.Await(w.t, await.Patience, r.name+" answers", func() bool {
		require.True(w.t, r.Running(), "%s has ended by itself", r.name)
		status, _ := w.asker.ask(http.MethodGet, "http://"+r.AddressNow("http")+"/v1/instances", "", nil)
		return status == http.StatusOK
	})
}

// call makes a request of the API, of the first process that answers it.
func (w *fixture) call(method, path string, in any) (status int, answer []byte) {
	w.t.Helper()
	var body []byte
	if in != nil {
		body = encode(w.t, in)
	}
	for _, r := range w.roles["preprocessor"] {
		status, answer = w.asker.ask(method, "http://"+r.AddressNow("http")+path, "application/json", body)
		if status != 0 {
			break
		}
	}
	return status, answer
}

func (w *fixture) define(subs []*subscriber) {
	w.t.Helper()
	w.subs = subs
	for name, partitions := range map[string]int{busMany: 3, busOne: 1} {
		status, answer := w.call(http.MethodPut, "/v1/buses/"+name, map[string]any{"partitions": partitions})
		require.Equal(w.t, http.StatusCreated, status, "%s", answer)
	}
	for _, s := range subs {
		s.book = w.sink.add(s)
		w.put(s)
		status, answer := w.call(http.MethodGet, s.path(), nil)
		require.Equal(w.t, http.StatusOK, status, "%s", answer)
		require.NoError(w.t, json.Unmarshal(answer, &s.stored))
		s.stored.Bus, s.stored.Name = s.bus, s.name
	}
	for _, s := range subs {
		w.active(s)
	}
}

// put makes or changes a subscriber.
func (w *fixture) put(s *subscriber) {
	w.t.Helper()
	var status int
	var answer []byte
	systems.Await(w.t, await.Patience, "the registry takes changes", func() bool {
		status, answer = w.call(http.MethodPut, s.path(), s.definition(w.sink.url))
		return status != 0 && status != http.StatusServiceUnavailable
	})
	require.Equal(w.t, 2, status/100, "%s: %d %s", s.name, status, answer)
}

// active waits until all engines match by what was put.
func (w *fixture) active(s *subscriber) {
	w.t.Helper()
	systems.Await(w.t, await.Patience, s.name+" is active", func() bool {
		_, answer := w.call(http.MethodGet, s.path()+"/status", nil)
		return strings.Contains(string(answer), `"active":true`)
	})
}

// load lets the senders send for a while.
func (w *fixture) load(d time.Duration) { time.Sleep(d) } // the load between faults

// kill ends processes by SIGKILL, and starts them again after a while.
func (w *fixture) kill(outage time.Duration, these ...*role) {
	w.t.Helper()
	w.alive()
	for _, r := range these {
		w.event("SIGKILL of %s, for %s", r.name, outage)
		r.Kill()
	}
	w.load(outage)
	for _, r := range these {
		r.Start()
	}
	for _, r := range these {
		w.listens(r)
	}
	w.event("all listen again")
}

// alive fails when a process has ended by itself.
func (w *fixture) alive() {
	w.t.Helper()
	for _, all := range w.roles {
		for _, r := range all {
			require.True(w.t, r.Running(), "%s has ended by itself", r.name)
		}
	}
}

// restartBroker kills the broker and starts it again after a while.
func (w *fixture) restartBroker(outage time.Duration) {
	w.t.Helper()
	w.event("SIGKILL of the broker, for %s", outage)
	require.NoError(w.t, w.server.Kill())
	w.load(outage)
	ctx, cancel := context.WithTimeout(context.Background(), 5*await.Patience) // a broker starts slowly on a busy machine
	defer cancel()
	require.NoError(w.t, w.server.Start(ctx))
	w.event("the broker is back")
}

// read calls h for each message of a topic, each partition in its order.
func (w *fixture) read(topic string, h func(*messaging.Delivery)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()
	cfg := messaging.ReaderConfig{Topic: topic, Name: "whole", PrefetchBytes: 4 << 20, MaxMessageBytes: 4 << 10}
	require.NoError(w.t, pulsar.ReadStored(ctx, w.server.URL(), cfg, func(d *messaging.Delivery) error {
		h(d)
		return nil
	}))
}
