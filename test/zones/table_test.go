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
	missing                int
	lost                   int // missing: only the lost zone had it, or it is from before a new cluster
	doubled, differences   int
	mayDouble              int // how many may have come twice
}

// table prints what the zones have, and fails the test unless that is all, and once.
func (w *world) table(step string, zones []*zone) {
	w.t.Helper()
	lines := w.countSonic(zones)
	for _, z := range zones {
		lines = append(lines, w.orders.countIn(w, z))
	}
	lines = append(lines, w.events.count())
	w.say("%s", step)
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(out, "\tflow\tzone\tacknowledged\treceived\tmissing\tlost or earlier\tdoubled\tdifferences")
	for _, n := range lines {
		fmt.Fprintf(out, "\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\n", n.flow, n.zone, n.acknowledged, n.received, n.missing, n.lost, n.doubled, n.differences)
		if n.missing > 0 || n.differences > 0 || n.doubled > n.mayDouble || n.acknowledged == 0 {
			w.t.Errorf("%s: %+v", step, n)
		}
	}
	_ = out.Flush()
}
