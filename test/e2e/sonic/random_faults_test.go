package sonic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
)

// A fault is something that goes wrong.
type fault string

// Faults of a moment, and those that last.
const (
	killSonic   fault = "SIGKILL of a Sonic"
	killSonics  fault = "SIGKILL of both Sonics"
	stopSonic   fault = "stop of a Sonic"
	pauseSonic  fault = "SIGSTOP of a Sonic"
	killRedis   fault = "SIGKILL of Redis"
	pauseRedis  fault = "SIGSTOP of Redis"
	rewind      fault = "redelivery"
	cutZone     fault = "zone cut off from Pulsar"
	silenceZone fault = "silence between zone and Pulsar"
	cutLink     fault = "replication to one zone cut"
	slowLink    fault = "replication to one zone slow"
	killBroker  fault = "SIGKILL of a broker"
)

// A step is one that lasts, if any, and those of a moment that happen meanwhile.
type step struct {
	lasting fault
	hold    time.Duration
	moments []fault
}

// A deck deals steps, by the seed, each kind as often as the others over time.
type deck struct {
	r        *rand.Rand
	long     bool
	clusters bool // zones have Redis Clusters
	cards    []step
}

func newDeck(r *rand.Rand, long bool) *deck { return &deck{r: r, long: long} }

func (d *deck) next() step {
	switch {
	case len(d.cards) > 0:
	case d.clusters:
		d.fillClusters()
	default:
		d.fill()
	}
	s := d.cards[0]
	d.cards = d.cards[1:]
	return s
}

// between returns a time.
func between(r *rand.Rand, from, to time.Duration) time.Duration {
	return from + time.Duration(r.Int64N(int64(to-from)))
}

func (d *deck) fill() {
	r := d.r
	quick := []fault{killSonic, killSonics, killRedis, killRedis, rewind, stopSonic}
	one := func() fault { return quick[r.IntN(len(quick))] }
	moment := func(faults ...fault) step { return step{moments: faults} }
	from, to := time.Second, 2*time.Second
	if d.long {
		to = 10 * time.Second
	}
	lasting := func(f fault, moments ...fault) step {
		return step{lasting: f, hold: between(r, from, to), moments: moments}
	}
	d.cards = []step{moment(killSonics), moment(killRedis), moment(rewind), lasting(cutZone, one()), lasting(cutLink)}
	if d.long {
		cut := lasting(cutZone, one(), one())
		cut.hold = 30 * time.Second
		d.cards = append(d.cards, moment(killSonic), moment(killSonic, killSonic), moment(stopSonic), lasting(slowLink), moment(killBroker), cut,
			lasting(cutLink, one(), one()), lasting(slowLink, one()), lasting(silenceZone, one()), lasting(killBroker, one()),
			moment(pauseSonic), moment(pauseRedis), moment(killRedis, killRedis), moment(killRedis, killSonic), moment(killSonics, rewind))
	}
	r.Shuffle(len(d.cards), func(i, j int) { d.cards[i], d.cards[j] = d.cards[j], d.cards[i] })
}

// step makes faults happen, has them end, and waits until all zones take writes.
func (w *randomRun) step(s step) {
	w.t.Helper()
	w.run(w.span(between(w.r, 200*time.Millisecond, 1200*time.Millisecond)))
	end := func() {}
	began := time.Now()
	if s.lasting != "" {
		w.counts[s.lasting]++
		end = w.begin(s.lasting)
	}
	for _, f := range s.moments {
		w.run(w.span(between(w.r, 50*time.Millisecond, time.Second)))
		w.counts[f]++
		w.begin(f)()
	}
	w.run(s.hold - time.Since(began))
	end()
	for _, site := range w.sites {
		w.writable(site)
	}
	w.event("all zones take writes")
}

// run lets the writers do something for a while.
func (w *randomRun) run(d time.Duration) {
	time.Sleep(d) // the load between faults
}

// span is how long something takes that takes d in a long run.
func (w *randomRun) span(d time.Duration) time.Duration {
	if w.long {
		return d
	}
	return d / 2
}

// pace is the longest time between two attempts of a writer. In an ordinary run the servers of other
// tests share the processors.
func (w *randomRun) pace() time.Duration {
	if w.long {
		return 12 * time.Millisecond
	}
	return 40 * time.Millisecond
}

// begin makes a fault happen and returns what ends it.
func (w *randomRun) begin(f fault) (end func()) {
	w.t.Helper()
	var can []*site
	for _, s := range w.sites {
		if s.can(f) {
			can = append(can, s)
		}
	}
	return w.beginIn(can[w.r.IntN(len(can))], f)
}

// beginIn makes a fault happen in a zone.
func (w *randomRun) beginIn(s *site, f fault) (end func()) {
	w.t.Helper()
	if s.nodes != nil && slices.Contains([]fault{moveSlots, failPrimary, failBehind, killRedis}, f) {
		return w.beginAt(s, f)
	}
	r, i := w.r, s.index
	other := (i + 1 + r.IntN(len(w.sites)-1)) % len(w.sites)
	k := r.IntN(2)
	pause := w.span(between(r, time.Millisecond, 1500*time.Millisecond))
	ok := func(err error) { require.NoError(w.t, err) }
	switch f {
	case killSonic, killSonics, stopSonic:
		these := s.sonics[k : k+1]
		if f == killSonics {
			these = s.sonics
		}
		w.event("zone %s: %s (%d), for %s", s.name, f, k, pause)
		w.alive(s)
		for _, e := range these {
			if f == stopSonic {
				e.Stop()
			} else {
				e.Kill()
			}
		}
		return func() {
			w.run(pause)
			for _, e := range these {
				e.Start()
			}
		}
	case pauseSonic:
		w.event("zone %s: %s (%d), for %s", s.name, f, k, 3*pause)
		s.sonics[k].Signal(syscall.SIGSTOP)
		return func() {
			w.run(3 * pause)
			s.sonics[k].Signal(syscall.SIGCONT)
		}
	case killRedis:
		w.event("zone %s: %s, for %s", s.name, f, pause)
		ok(s.redis.Kill())
		return func() {
			w.run(pause)
			ok(s.redis.Start(context.Background()))
		}
	case pauseRedis:
		w.event("zone %s: %s, for %s", s.name, f, 3*pause)
		ok(s.redis.Pause())
		return func() {
			w.run(3 * pause)
			ok(s.redis.Resume())
		}
	case rewind:
		return w.rewind(s, w.sites[other])
	case cutZone, silenceZone:
		w.event("zone %s: %s", s.name, f)
		return w.cut(w.pulsars.Clients[s.pulsar], f == silenceZone, "zone "+s.name)
	case cutLink:
		w.event("from zone %s to zone %s: %s", s.name, w.sites[other].name, f)
		return w.cut(w.pulsars.Links[i][other], r.IntN(2) == 0, "from zone "+s.name)
	case slowLink:
		w.event("from zone %s to zone %s: %s", s.name, w.sites[other].name, f)
		p := w.pulsars.Links[i][other]
		ok(p.Bandwidth(4))
		return func() {
			p.Heal()
			w.event("from zone %s: healed", s.name)
		}
	case killBroker:
		w.event("zone %s: %s", s.name, f)
		ok(w.pulsars.Clusters[s.pulsar].Kill())
		return func() {
			ok(w.pulsars.Clusters[s.pulsar].Start(context.Background()))
			w.event("zone %s: the broker is back", s.name)
		}
	}
	panic(f)
}

// cut cuts a way, or swallows what is sent before it cuts.
func (w *randomRun) cut(p *proxy.Proxy, silent bool, name string) (end func()) {
	w.t.Helper()
	if !silent {
		p.Cut()
	} else {
		require.NoError(w.t, p.Silence())
	}
	return func() {
		if silent { // what was swallowed is lost: so are the connections
			p.Cut()
			p.Heal()
		}
		require.NoError(w.t, p.Restore())
		w.event("%s: healed", name)
	}
}

// rewind has Pulsar deliver once more what a zone has had of another in the last seconds.
func (w *randomRun) rewind(at, of *site) (end func()) {
	w.t.Helper()
	back := between(w.r, time.Second, 10*time.Second)
	w.event("zone %s: %s of the last %s of zone %s", at.name, rewind, back, of.name)
	path := "/admin/v2/" + strings.Replace(w.topicOf(of), "://", "/", 1) + fmt.Sprintf("/subscription/sonic-%s/resetcursor/%d", at.name, time.Now().Add(-back).UnixMilli())
	ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
	defer cancel()
	// A broker refuses while the consumers of the reset before come back.
	if err := w.pulsars.Clusters[at.pulsar].Admin(ctx, http.MethodPost, path, nil, nil); err != nil {
		w.event("refused: %v", err)
		w.counts[rewind]--
	}
	return func() {}
}

func (w *randomRun) topicOf(s *site) string { return w.topic + "-" + s.name + "-0" }

// alive fails when a Sonic has ended by itself.
func (w *randomRun) alive(s *site) {
	w.t.Helper()
	for i, e := range s.sonics {
		require.True(w.t, e.Running(), "Sonic %d of zone %s has ended by itself", i, s.name)
	}
}

// endFaults marks the end of faults: each fault has ended with its step.
func (w *randomRun) endFaults() {
	w.t.Helper()
	for _, s := range w.sites {
		w.alive(s)
	}
	w.event("no more faults")
}
