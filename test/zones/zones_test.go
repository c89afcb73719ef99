package zones

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/systems"
)

// loadLasts is how long clients write before, between and behind faults.
const loadLasts = 10 * time.Second

// TestFourZones cuts a zone off, upgrades all zones one by one, loses a zone and replaces it.
func TestFourZones(t *testing.T) {
	before, after := versions(t)
	w := newWorld(t, before)
	t.Cleanup(w.ended)
	w.begin()
	w.load(loadLasts)
	w.compare("load in all zones")
	w.cutOff(cutLasts(t))
	w.upgrade(after)
	w.lose()
}

// compare stops the clients, waits until all has arrived, counts, and has the clients go on.
func (w *world) compare(step string) {
	w.t.Helper()
	w.compareIn(step, w.zones)
	w.begin()
}

func (w *world) compareIn(step string, zones []*zone) {
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
func (w *world) cutOff(d time.Duration) {
	w.t.Helper()
	restore := w.cut(home)
	w.say("zone %s is cut off from the others, for %s", w.zones[home].name, d)
	w.load(d)
	restore()
	w.say("zone %s is back", w.zones[home].name)
	w.load(loadLasts)
	w.compare("a zone was cut off")
}

// upgrade replaces all services, zone by zone.
func (w *world) upgrade(binaries string) {
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
		if i == home {
			replace(w.pigeonhole, "pigeonhole")
			replace(w.eventbridge.Load(), "eventbridge")
		}
		w.say("versions: %s", w.versions())
		w.load(loadLasts / 2)
	}
	w.compare("all zones were upgraded")
}

// versions is what runs now.
func (w *world) versions() string {
	starting := regexp.MustCompile(`"msg":"starting"[^\n]*"version":"([^"]*)"`)
	of := func(p *systems.Process) string {
		all := starting.FindAllStringSubmatch(p.Log(), -1)
		return all[len(all)-1][1]
	}
	var list []string
	for _, z := range w.zones {
		list = append(list, fmt.Sprintf("Sonic %s %s", z.name, of(z.sonic)))
	}
	return strings.Join(append(list, "Pigeonhole "+of(w.pigeonhole), "Eventbridge "+of(w.eventbridge.Load())), ", ")
}
