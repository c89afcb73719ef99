package eventbridge

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
	"github.com/aviaryhq/aviary/test/stack"
)

// private is a broker that may be killed.
func private(t testing.TB) *stack.PulsarServer {
	t.Helper()
	return stack.PrivatePulsar(t, stack.Memory("-Xms192m -Xmx512m -XX:MaxDirectMemorySize=256m"))
}

// short is for how long faults happen in the short form of a test.
const short = 5 * time.Second

// until calls step again and again for a while, once at least.
func (w *fixture) until(d time.Duration, step func()) {
	w.t.Helper()
	for end := time.Now().Add(d); ; {
		step()
		if time.Now().After(end) || w.t.Failed() {
			return
		}
	}
}

// TestKillsOfEachRole kills the only process of each role under load, one after the other, and all
// at once.
func TestKillsOfEachRole(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 1)
	w.send()
	one := func(name string) *role { return w.roles[name][0] }
	w.until(soak.Lasting(t, short, fifth), func() {
		for _, name := range []string{"preprocessor", "engine", "processor"} {
			w.load(between(w.r, 300*time.Millisecond, time.Second))
			w.kill(between(w.r, 0, time.Second), one(name))
		}
		w.load(between(w.r, 300*time.Millisecond, time.Second))
		w.kill(0, one("preprocessor"), one("engine"), one("processor"))
	})
	opened := func() bool { return strings.Contains(one("processor").Log(), "the breaker is open") }
	for end := time.Now().Add(await.Patience); !opened() && time.Now().Before(end); { // kills may have covered each time in which targets fail
		w.load(100 * time.Millisecond)
	}
	w.finish()
	assert.True(t, opened(), "the breakers of the unsteady subscribers have opened")
}

// TestOutage restarts the broker under load, while a process begins, and leaves it down for a while.
func TestOutage(t *testing.T) {
	t.Parallel()
	w := newFixture(t, private(t), 1)
	w.send()
	w.load(time.Second)
	w.beginWithoutBroker(w.roles["engine"][0], 0)
	w.load(time.Second)
	w.restartBroker(soak.Lasting(t, 3*time.Second, func(time.Duration) time.Duration { return time.Minute }))
	w.load(time.Second)
	w.finish()
}

// TestUnavailable: subscribers are unavailable for long. They delay no other, and get everything
// when they are back.
func TestUnavailable(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 1)
	w.send()
	w.load(time.Second)
	var unavailable []*subscriber
	for _, s := range w.subs {
		if slices.Contains([]string{"any", "group", "single", "total"}, s.name) {
			unavailable = append(unavailable, s)
			s.book.unavailable.Store(true)
		}
	}
	w.event("subscribers are unavailable")
	w.load(soak.Lasting(t, short, func(time.Duration) time.Duration { return 5 * time.Minute }))
	w.awaitAll(unavailable...) // of what was accepted until now
	w.event("the others have everything")
	for _, s := range unavailable {
		assert.Positive(t, s.book.failures(), "%s: attempts while it was unavailable", s.name)
		require.NotEmpty(t, s.missing(w.ledger.accepted()), s.name)
		s.book.unavailable.Store(false)
	}
	w.event("subscribers are back")
	w.load(time.Second)
	w.finish()
}

// TestRulesChange changes rules under load, and kills an engine meanwhile. Events that
// both the old and the new rules match arrive; events that neither match do not.
func TestRulesChange(t *testing.T) {
	t.Parallel()
	sets := []map[string]any{kinds(placed, low), {"type": []any{map[string]string{"prefix": "order."}}}}
	expects := func(e event) verdict {
		switch {
		case e.kind == placed:
			return always
		case e.phase == 0: // while rules change
			return perhaps
		case e.kind == low: // the first set is the last, too
			return always
		default:
			return never
		}
	}
	var changing []*subscriber
	for _, order := range []model.Order{model.OrderNone, model.OrderGroup} {
		changing = append(changing, &subscriber{bus: busMany, name: "changing-" + string(order), order: order, pattern: sets[0], expects: expects})
	}
	neither := &subscriber{bus: busMany, name: "neither", order: model.OrderNone, pattern: kinds("nothing", "this"), expects: func(event) verdict { return never }}
	w := newFixture(t, stack.Pulsar(t), 2, append(changing, neither)...)
	w.send()
	change := func(i int) {
		for _, s := range changing {
			s.pattern = sets[i%2]
			w.put(s)
		}
		neither.pattern = kinds("nothing", []string{"this", "that"}[i%2])
		w.put(neither)
	}
	changes := 0
	w.until(soak.Lasting(t, short, fifth), func() {
		for range 10 {
			changes++
			change(changes)
			w.load(between(w.r, 0, 200*time.Millisecond))
		}
		w.kill(time.Second, w.roles["engine"][w.r.IntN(2)])
	})
	change(0)
	for _, s := range changing {
		w.active(s)
	}
	w.phase.Store(1)
	w.event("rules changed %d times", changes)
	w.load(time.Second)
	w.finish()
}

// TestTakeover kills engines and processors under load while a second one of each is there, which
// takes over; in the long form they are also stopped for so long that the brokers give them up, and
// go on then.
func TestTakeover(t *testing.T) {
	t.Parallel()
	w := newFixture(t, stack.Pulsar(t), 2)
	w.send()
	i := 0
	w.until(soak.Lasting(t, short, fifth), func() {
		for _, name := range []string{"engine", "processor"} {
			w.load(between(w.r, 500*time.Millisecond, time.Second))
			w.kill(between(w.r, time.Second, 2*time.Second), w.roles[name][i%2])
		}
		i++
	})
	if soak.Long(t) {
		for i, e := range w.roles["engine"] {
			w.pause(e, 90*time.Second)
			w.load(3 * time.Second)
			w.event("paused %d", i)
		}
	}
	w.load(time.Second)
	w.finish()
}

// pause stops a process for a while, which then goes on.
func (w *fixture) pause(r *role, d time.Duration) {
	w.t.Helper()
	w.event("SIGSTOP of %s, for %s", r.name, d)
	r.Signal(syscall.SIGSTOP)
	w.load(d)
	r.Signal(syscall.SIGCONT)
	w.event("%s goes on", r.name)
}
