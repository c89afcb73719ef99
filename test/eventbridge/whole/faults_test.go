package whole

import (
	"math/rand/v2"
	"testing"
	"time"
)

// between returns a time.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

// TestRandomFaults: whatever may happen, in an order that the seed gives.
func TestRandomFaults(t *testing.T) {
	w := newWorld(t, private(t), 2)
	w.send()
	faults := w.faults()
	var deck []int
	w.until(lasting(t, 40*time.Second, func(all time.Duration) time.Duration { return all }), func() {
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

// faults are all that can go wrong. Each ends before the next one begins.
func (w *world) faults() []func() {
	one := func(name string) *role { return w.roles[name][w.r.IntN(2)] }
	whoever := func() *role { return one([]string{"preprocessor", "engine", "processor"}[w.r.IntN(3)]) }
	while := func() time.Duration { return between(w.r, 0, 2*time.Second) }
	return []func(){
		func() { w.kill(while(), one("preprocessor")) },
		func() { w.kill(while(), one("engine")) },
		func() { w.kill(while(), one("processor")) },
		func() { w.kill(while(), w.roles["engine"]...) },
		func() { w.kill(while(), w.roles["processor"]...) },
		func() { w.kill(while(), one("preprocessor"), one("engine"), one("processor")) },
		func() { w.restartBroker(while()) },
		func() { // it begins while the broker is unavailable
			r := whoever()
			w.event("SIGKILL of %s with the broker", r.name)
			r.Kill()
			r.Start()
			w.restartBroker(while())
			w.listens(r)
		},
		func() {
			r := whoever()
			w.event("stop of %s", r.name)
			r.Stop()
			w.load(while())
			r.Start()
			w.listens(r)
		},
		func() { w.pause(whoever(), between(w.r, time.Second, 4*time.Second)) },
		func() {
			s := w.subs[w.r.IntN(len(w.subs))]
			w.event("%s is unavailable", s.name)
			s.book.unavailable.Store(true)
			w.load(between(w.r, time.Second, 4*time.Second))
			s.book.unavailable.Store(false)
		},
		func() { // a change that changes nothing of what matches
			s := w.subs[w.r.IntN(len(w.subs))]
			w.event("%s is put again", s.name)
			w.put(s)
		},
	}
}
