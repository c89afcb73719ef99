package zones

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// lose loses the zone that has Pigeonhole and Eventbridge for good, moves these to another one, and
// replaces the zone by an empty one.
func (w *world) lose() {
	w.t.Helper()
	rest := w.zones[next:]
	w.loseHome()
	w.move()
	w.load(loadLasts)
	w.compareRest(rest)
	w.replace()
	w.begin()
	w.load(loadLasts)
	w.compareIn("a zone was lost and replaced", w.zones)
	out, err := w.runSonic(home, w.peers(1, 2, 3), "-check")
	w.say("%s", lastLines(out, err))
	require.NoError(w.t, err, "%s", out)
}

// loseHome kills all servers and services of the zone.
func (w *world) loseHome() {
	w.t.Helper()
	lost := w.zones[home]
	// The zones differ in what they have of the one that is lost: one gets nothing of its last seconds.
	w.pulsars.Links[home][next].Cut()
	w.load(2 * time.Second)
	lost.down.Store(true)
	require.NoError(w.t, lost.pulsar.Kill())
	require.NoError(w.t, lost.redis.Kill())
	lost.sonic.Kill()
	w.pigeonhole.Kill()
	w.eventbridge.Load().Kill()
	w.sonics.zoneIsLost(lost)
	w.events.zoneIsLost()
	w.orders.zoneIsLost(w)
	w.say("zone %s is lost: SIGKILL of all that ran there", lost.name)
	require.NoError(w.t, w.pulsars.Links[home][next].Restore())
}

// move starts Pigeonhole and Eventbridge in another zone.
func (w *world) move() {
	w.t.Helper()
	for i := range w.zones[next:] {
		w.replicate(next+i, nil, strings.Join(w.clusters(1, 2, 3), ","))
	}
	w.pigeonhole = w.startPigeonhole(next, "orders-2")
	w.eventbridge.Store(w.startEventbridge(next))
	w.awaitReady(w.pigeonhole)
	w.awaitReady(w.eventbridge.Load())
	w.say("Pigeonhole and Eventbridge run in zone %s", w.zones[next].name)
}

// compareRest counts in the zones that are left, once they are equal again.
func (w *world) compareRest(rest []*zone) {
	w.t.Helper()
	w.end()
	w.settle(rest...)
	w.equalise(rest)
	w.orders.settle(w, rest)
	w.events.settle(w)
	w.table("zone "+w.zones[home].name+" is lost", rest)
	require.False(w.t, w.t.Failed())
	w.begin()
}
