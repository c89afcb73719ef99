package zones

import (
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/systems"
)

// writingLasts is how long clients write before, between and behind faults.
const writingLasts = 10 * time.Second

// TestFourZones cuts a zone off, upgrades all zones one by one, loses a zone and replaces it.
func TestFourZones(t *testing.T) {
	former, current := versions(t)
	w := newFixture(t, former)
	t.Cleanup(w.ended)
	w.begin()
	w.keepWriting(writingLasts)
	w.compare("load in all zones")
	w.cutOff(cutLasts(t))
	w.upgrade(current)
	w.lose()
}

// compare stops the clients, waits until all has arrived, counts, and has the clients go on.
func (w *fixture) compare(step string) {
	w.t.Helper()
	w.compareIn(step, w.zones)
	w.begin()
}

func (w *fixture) compareIn(step string, zones []*zone) {
	w.t.Helper()
	w.end()
	w.say("%s: the clients have stopped", step)
	w.settle(zones...)
	w.orders.settle(w, zones)
	w.events.settle(w)
	w.table(step, zones)
	require.False(w.t, w.t.Failed())
}

// cutOff cuts a zone off, the one that has Pigeonhole and Eventbridge.
func (w *fixture) cutOff(d time.Duration) {
	w.t.Helper()
	restore := w.cut(first)
	w.say("zone %s is cut off from the others, for %s", w.zones[first].name, d)
	w.keepWriting(d)
	w.awaitAcknowledgements() // by the zone that is cut off, and by the others
	restore()
	w.say("zone %s is back", w.zones[first].name)
	w.keepWriting(writingLasts)
	w.compare("a zone was cut off")
}

// upgrade replaces all services, zone by zone.
func (w *fixture) upgrade(binaries string) {
	w.t.Helper()
	w.binaries = binaries
	replace := func(p *systems.Process, service string) {
		p.Stop()
		p.Replace(w.binary(service))
		p.Start()
		w.awaitReady(p)
	}
	for i, z := range w.zones {
		replace(z.sonic, "sonic")
		if i == first {
			replace(w.pigeonhole, "pigeonhole")
			replace(w.eventbridge.Load(), "eventbridge")
			w.events.restarted()
		}
		w.requireVersions(i)
		w.keepWriting(writingLasts / 2)
	}
	w.compare("all zones were upgraded")
}

// requireVersions requires that the zones up to last run the new version, and the others the former.
func (w *fixture) requireVersions(last int) {
	w.t.Helper()
	starting := regexp.MustCompile(`"msg":"starting"[^\n]*"version":"([^"]*)"`)
	var list []string
	check := func(name, want string, p *systems.Process) {
		all := starting.FindAllStringSubmatch(p.Log(), -1)
		got := all[len(all)-1][1]
		require.Equal(w.t, want, got, "%s", name)
		list = append(list, name+" "+got)
	}
	for i, z := range w.zones {
		want := newVersion
		if i > last {
			want = formerVersion
		}
		check("Sonic "+z.name, want, z.sonic)
	}
	check("Pigeonhole", newVersion, w.pigeonhole)
	check("Eventbridge", newVersion, w.eventbridge.Load())
	w.say("versions: %s", strings.Join(list, ", "))
}
