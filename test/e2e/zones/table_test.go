package zones

import (
	"fmt"
	"os"
	"text/tabwriter"
)

// A line is what a zone has of one flow.
type line struct {
	flow, zone             string
	acknowledged, received int
	inStep                 int // acknowledged by this zone, or for this flow, since the last table
	missing                int
	lost                   int // missing: only the lost zone had it, or it is from before a new cluster
	doubled, differences   int
	tooOften               int // doubled, and nothing explains it
}

func (n line) wrong() bool {
	return n.missing > 0 || n.differences > 0 || n.tooOften > 0 || n.inStep == 0 ||
		n.flow == sonicFlow && n.doubled > 0
}

// table prints what the zones have, and fails the test unless that is all, and once.
func (w *fixture) table(step string, zones []*zone) {
	w.t.Helper()
	lines := w.countSonic(zones)
	for _, z := range zones {
		lines = append(lines, w.orders.countIn(w, z))
	}
	lines = append(lines, w.events.count())
	w.say("%s", step)
	acknowledged := w.acknowledged()
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "\tflow\tzone\tacknowledged\tin this step\treceived\tmissing\tlost or earlier\tdoubled\tdifferences")
	for _, n := range lines {
		source := n.flow
		if n.flow == sonicFlow {
			source += " " + n.zone
		}
		n.inStep = acknowledged[source] - w.counted[source]
		fmt.Fprintf(out, "\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", n.flow, n.zone, n.acknowledged, n.inStep, n.received, n.missing, n.lost, n.doubled, n.differences)
		if n.wrong() {
			w.t.Errorf("%s: %+v", step, n)
		}
	}
	_ = out.Flush()
	w.counted = acknowledged
}

// acknowledged is what each zone's Sonic, Kafka and Eventbridge have acknowledged so far.
func (w *fixture) acknowledged() map[string]int {
	n := map[string]int{ordersFlow: len(w.orders.known()), eventsFlow: w.events.accepted()}
	w.sonics.mu.Lock()
	defer w.sonics.mu.Unlock()
	for _, z := range w.zones {
		n[sonicFlow+" "+z.name] = w.sonics.writes[z.name]
	}
	return n
}

// awaitAcknowledgements waits until each of them has acknowledged more.
func (w *fixture) awaitAcknowledgements() {
	w.t.Helper()
	before := w.acknowledged()
	for source, n := range before {
		w.await(source+" acknowledges", func() bool { return w.acknowledged()[source] > n })
	}
}
