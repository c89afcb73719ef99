package zones

import (
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// lose loses the zone that has Pigeonhole and Eventbridge for good, moves these to another one, and
// replaces the zone by an empty one.
func (w *fixture) lose() {
	w.t.Helper()
	rest := w.zones[second:]
	w.loseFirst()
	w.move()
	w.keepWriting(writingLasts)
	w.compareRest(rest)
	w.replace()
	w.keepWriting(writingLasts)
	w.compareIn("a zone was lost and replaced", w.zones)
	out, err := w.runSonic(first, w.peers(1, 2, 3), "-check")
	w.say("%s", lastLines(out, err))
	require.NoError(w.t, err, "%s", out)
}

// loseFirst kills all servers and services of the zone.
func (w *fixture) loseFirst() {
	w.t.Helper()
	lost, rest := w.zones[first], w.zones[second:]
	release := w.events.hold() // the next zone is to deliver what this one did not
	w.events.awaitStored(w, w.zones[second])
	// The zones differ in what they have of the one that is lost: one gets nothing of its last seconds.
	w.pulsars.Links[first][second].Cut()
	w.keepWriting(2 * time.Second)
	shipped := w.sonics.acknowledgedBy(lost)
	w.settleFrom([]*zone{lost}, rest[1:])
	lost.down.Store(true)
	require.NoError(w.t, lost.pulsar.Kill())
	require.NoError(w.t, lost.redis.Kill())
	lost.sonic.Kill()
	w.pigeonhole.Kill()
	w.eventbridge.Load().Kill()
	w.say("zone %s is lost: SIGKILL of all that ran there", lost.name)
	w.sonics.zoneIsLost(w, lost, shipped, rest)
	waiting := w.events.zoneIsLost(w.events.stored(w, rest[0]))
	w.say("zone %s stores %d accepted events that were not delivered", rest[0].name, waiting)
	w.orders.zoneIsLost(w)
	release()
	require.NoError(w.t, w.pulsars.Links[first][second].Restore())
}

// move starts Pigeonhole and Eventbridge in another zone.
func (w *fixture) move() {
	w.t.Helper()
	for i := range w.zones[second:] {
		w.replicate(second+i, nil, strings.Join(w.clusters(1, 2, 3), ","))
	}
	w.pigeonhole = w.startPigeonhole(second, "orders-2")
	w.eventbridge.Store(w.startEventbridge(second))
	w.awaitReady(w.pigeonhole)
	w.awaitReady(w.eventbridge.Load())
	w.say("Pigeonhole and Eventbridge run in zone %s", w.zones[second].name)
}

// compareRest counts in the zones that are left, once they are equal again.
func (w *fixture) compareRest(rest []*zone) {
	w.t.Helper()
	w.end()
	w.settle(rest...)
	w.repairZones(rest)
	w.orders.settle(w, rest)
	w.events.settle(w)
	w.table("zone "+w.zones[first].name+" is lost", rest)
	require.False(w.t, w.t.Failed())
	w.begin()
}
