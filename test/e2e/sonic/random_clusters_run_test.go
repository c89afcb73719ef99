package sonic

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/variable"
)

// settle ends what writers do, and compares what zones hold with each other and with what was
// acknowledged.
func (w *randomRun) settle() {
	w.t.Helper()
	w.endFaults()
	w.run(w.span(time.Second)) // behind the last fault
	w.stopWriters()
	w.awaitAll()
	w.lagIsZero()
	w.compareNow()
	w.acknowledged()
}

// under has faults happen, one after the other, in all zones, under load.
func (w *randomRun) under(faults ...fault) func(*testing.T) {
	return func(t *testing.T) {
		t.Helper()
		all := w.t
		w.t = t
		defer func() { w.t = all }()
		w.write()
		defer w.stopWriters()
		for _, f := range faults {
			for _, s := range w.sites {
				if !s.can(f) {
					continue
				}
				w.run(w.span(time.Second))
				w.counts[f]++
				end := w.beginIn(s, f)
				w.run(w.span(time.Second)) // while it lasts
				end()
				for _, s := range w.sites {
					w.writable(s)
				}
				w.event("all zones take writes")
			}
		}
		w.settle()
	}
}

// TestZonesWithRedisClusters: zones whose Redis Clusters have different sizes hold the same, and
// each acknowledged write once, whatever happens while clients write in both. AVIARY_SONIC_SECONDS
// has everything happen at once for that long, by the seed.
func TestZonesWithRedisClusters(t *testing.T) {
	t.Parallel()
	if seconds := variable.Number(t, randomSeconds, 0); seconds > 0 {
		clustersForLong(t, seconds)
		return
	}
	w := newRandomRun(t, variable.Number(t, randomSeed, shortSeed), []startRedis{clusterOf(3, 1), clusterOf(2, 0)}, 1, false)
	defer func() { t.Logf("%s\n%s", strings.Join(w.events, "\n"), w.ledger) }()
	for _, test := range []struct {
		name   string
		faults []fault
	}{
		{"slots move", []fault{moveSlots}},
		{"a replica takes over", []fault{failBehind}}, // those of failPrimary, and more
		{"a primary is started again", []fault{killRedis}},
		{"a Sonic is killed", []fault{killSonic}},
		{"zones are cut off", []fault{cutZone}},
	} {
		if !t.Run(test.name, w.under(test.faults...)) {
			return
		}
	}
	w.compare()
}

// fillClusters deals the faults of zones with Redis Clusters.
func (d *deck) fillClusters() {
	r := d.r
	quick := []fault{killSonic, killSonics, killRedis, moveSlots, moveSlots, rewind, stopSonic, failPrimary}
	one := func() fault { return quick[r.IntN(len(quick))] }
	for _, f := range []fault{"", "", "", "", cutZone, cutZone, cutLink, slowLink, silenceZone, killBroker, moveSlots} {
		s := step{lasting: f, moments: []fault{one(), one()}}
		if f == moveSlots { // a slot that is moving needs its primaries
			s.moments = []fault{killSonic, killSonics, stopSonic}
		}
		if f != "" {
			s.hold = between(r, time.Second, 10*time.Second)
		}
		d.cards = append(d.cards, s)
	}
	for _, f := range []fault{moveSlots, failPrimary, failBehind, killRedis, killSonics, pauseSonic} {
		d.cards = append(d.cards, step{moments: []fault{f}})
	}
	r.Shuffle(len(d.cards), func(i, j int) { d.cards[i], d.cards[j] = d.cards[j], d.cards[i] })
}

func clustersForLong(t *testing.T, seconds uint64) {
	t.Helper()
	seed := variable.Number(t, randomSeed, rand.Uint64())
	text := fmt.Sprintf("%s=%d %s=%d", randomSeed, seed, randomSeconds, seconds)
	t.Log(text)
	kinds := []startRedis{clusterOf(3, 1), [...]startRedis{clusterOf(2, 0), clusterOf(4, 1), single}[seed%3]}
	w := newRandomRun(t, seed, kinds, len(kinds), true)
	defer func() { t.Logf("%s\n%s\n%s", text, strings.Join(w.events, "\n"), w.ledger) }()
	w.write()
	d := newDeck(w.r, true)
	d.clusters = true
	compared := time.Now()
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for time.Now().Before(end) && !t.Failed() {
		w.step(d.next())
		if time.Since(compared) > compareEvery {
			w.pause()
			w.awaitAll()
			w.compare()
			w.resume()
			compared = time.Now()
		}
	}
	w.settle()
	w.compare()
	w.event("faults: %v", w.counts)
}
