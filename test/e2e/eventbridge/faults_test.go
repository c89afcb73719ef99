package eventbridge

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/e2e/eventbridge/soak"
	"github.com/aviaryhq/aviary/test/stack"
)

// between returns a time.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

// TestRandomFaults: whatever may happen, in an order that the seed gives. In the short form those
// that no other test has happen once each.
func TestRandomFaults(t *testing.T) {
	t.Parallel()
	if !soak.Long(t) {
		w := newFixture(t, stack.Pulsar(t), 2)
		w.send()
		faults := w.faultsOfNoOtherTest()
		for _, i := range w.r.Perm(len(faults)) {
			w.load(between(w.r, 200*time.Millisecond, 500*time.Millisecond))
			faults[i]()
		}
		w.finish()
		return
	}
	w := newFixture(t, private(t), 2)
	w.send()
	faults := append(w.faults(), w.faultsOfNoOtherTest()...)
	var deck []int
	w.until(soak.Lasting(t, short, func(all time.Duration) time.Duration { return all }), func() {
		if len(deck) == 0 { // each as often as the others over time
			deck = w.r.Perm(len(faults))
		}
		w.load(between(w.r, 200*time.Millisecond, 1500*time.Millisecond))
		faults[deck[0]]()
		deck = deck[1:]
	})
	w.load(time.Second)
	w.finish()
}

func (w *fixture) one(name string) *role { return w.roles[name][w.r.IntN(2)] }

func (w *fixture) whoever() *role {
	return w.one([]string{"preprocessor", "engine", "processor"}[w.r.IntN(3)])
}

// faults are those that other tests have, too. Each ends before the next one begins.
func (w *fixture) faults() []func() {
	while := func() time.Duration { return between(w.r, 0, 2*time.Second) }
	return []func(){
		func() { w.kill(while(), w.one("preprocessor")) },
		func() { w.kill(while(), w.one("engine")) },
		func() { w.kill(while(), w.one("processor")) },
		func() { w.kill(while(), w.roles["engine"]...) },
		func() { w.kill(while(), w.roles["processor"]...) },
		func() { w.kill(while(), w.one("preprocessor"), w.one("engine"), w.one("processor")) },
		func() { w.restartBroker(while()) },
		func() { w.beginWithoutBroker(w.whoever(), while()) },
	}
}

// beginWithoutBroker kills a process, which begins anew while the broker is unavailable.
func (w *fixture) beginWithoutBroker(r *role, outage time.Duration) {
	w.t.Helper()
	w.event("SIGKILL of %s with the broker", r.name)
	r.Kill()
	r.Start()
	w.restartBroker(outage)
	w.listens(r)
}

// faultsOfNoOtherTest are the others. Each ends before the next one begins.
func (w *fixture) faultsOfNoOtherTest() []func() {
	most := 4 * time.Second
	if !soak.Long(w.t) {
		most = 2 * time.Second
	}
	return []func(){
		func() {
			r := w.whoever()
			w.event("stop of %s", r.name)
			r.Stop()
			w.load(between(w.r, 0, most/2))
			r.Start()
			w.listens(r)
		},
		func() { w.pause(w.whoever(), between(w.r, time.Second, most)) },
		func() {
			s := w.subs[w.r.IntN(len(w.subs))]
			w.event("%s is unavailable", s.name)
			s.book.unavailable.Store(true)
			w.load(between(w.r, time.Second, most))
			s.book.unavailable.Store(false)
		},
		func() { // a change that changes nothing of what matches
			s := w.subs[w.r.IntN(len(w.subs))]
			w.event("%s is put again", s.name)
			w.put(s)
		},
	}
}
