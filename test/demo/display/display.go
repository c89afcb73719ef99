// Package display shows the demo: as lines, or as a window with a panel for each service.
package display

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Screen is what flows and the demo show themselves on: [Lines] or a [Window]. It is safe for
// concurrent use. A panel has the name of its service.
type Screen interface {
	// Note tells something about the demo itself.
	Note(format string, args ...any)
	// Waiting says what a service that does not run yet waits for.
	Waiting(panel, what string)
	// Address adds an address to open or to connect to.
	Address(panel, what, address string)
	// Sample shows a record that has arrived, if one may be shown now. It calls line only then.
	Sample(panel string, line func() string)
	// Status adds the figures of a panel. They are asked for about once a second, and must not wait
	// for anything.
	Status(panel string, figures func() Figures)
	// Control adds what kills the service of a panel and starts it again.
	Control(panel string, by Controlled)

	// Refresh keeps what is shown current until ctx ends.
	Refresh(ctx context.Context) error
	// End says that nothing flows any more.
	End()
	// Table writes the checks of a flow.
	Table(name string, checks []Check)
}

// Controlled is a service that can be killed and started again.
type Controlled interface {
	State() State
	Kill() error
	Again() error
}

// Figures are what a flow has counted. Those that are not known are nil, never 0.
type Figures struct {
	Unit     string // what is counted
	From, To string // where it comes from and where it goes to
	Sent     *int64
	Arrived  int64         // each once
	Bytes    int64         // that arrived, 0 if they are not counted
	Missing  *int64        // sent a while ago, and not arrived
	Twice    *int64        // arrived again
	Lag      time.Duration // 0 if it is not known
	More     []string      // what is particular to the flow
}

// Overdue is how long a record may be on its way before it counts as missing.
const Overdue = 3 * time.Second

// balance says whether something was lost.
func (f Figures) balance() []string {
	var parts []string
	if f.Sent != nil {
		parts = append(parts, fmt.Sprintf("sent %d", *f.Sent))
	}
	parts = append(parts, fmt.Sprintf("arrived %d", f.Arrived))
	if f.Sent != nil && f.Missing != nil {
		parts = append(parts, fmt.Sprintf("on the way %d", max(0, *f.Sent-f.Arrived-*f.Missing)))
	}
	if f.Missing != nil {
		parts = append(parts, fmt.Sprintf("missing %d", *f.Missing))
	}
	if f.Twice != nil {
		parts = append(parts, fmt.Sprintf("twice %d", *f.Twice))
	}
	return parts
}

// traffic says what goes in and comes out in a second.
func (f Figures) traffic(r rates) []string {
	var parts []string
	if f.Sent != nil {
		parts = append(parts, fmt.Sprintf("in %.0f %s/s from %s", r.sent, f.Unit, f.From))
	}
	parts = append(parts, fmt.Sprintf("out %.0f/s to %s", r.arrived, f.To))
	if f.Lag > 0 {
		parts = append(parts, "lag "+short(f.Lag))
	}
	if f.Bytes > 0 {
		parts = append(parts, fmt.Sprintf("%.0f KiB/s", r.bytes/1024))
	}
	return parts
}

// text is a line of everything.
func (f Figures) text(panel string, r rates) string {
	groups := []string{strings.Join(f.traffic(r), ", "), strings.Join(f.balance(), ", ")}
	if len(f.More) > 0 {
		groups = append(groups, strings.Join(f.More, ", "))
	}
	return panel + "  " + strings.Join(groups, "; ")
}

// short writes a duration with two digits or so.
func short(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.1f ms", Milliseconds(d))
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", Milliseconds(d))
	case d < time.Minute:
		return fmt.Sprintf("%.1f s", d.Seconds())
	default:
		return d.Round(time.Second).String()
	}
}

// rates are what figures grew by, per second.
type rates struct{ sent, arrived, bytes float64 }

// meter turns totals into rates.
type meter struct {
	span  int // how many reads back a rate begins, at least 1: what comes in batches of a second is even over some
	reads []reading
}

type reading struct {
	at time.Time
	Figures
}

// read returns the rates since some reads ago. The first has none.
func (m *meter) read(f Figures) (r rates) {
	now := reading{at: time.Now(), Figures: f}
	m.reads = append(m.reads, now)
	m.reads = m.reads[max(0, len(m.reads)-1-max(1, m.span)):]
	before := m.reads[0]
	seconds := now.at.Sub(before.at).Seconds()
	if seconds <= 0 {
		return r
	}
	r.arrived, r.bytes = max(0, float64(f.Arrived-before.Arrived)/seconds), max(0, float64(f.Bytes-before.Bytes)/seconds)
	if f.Sent != nil && before.Sent != nil {
		r.sent = max(0, float64(*f.Sent-*before.Sent)/seconds)
	}
	return r
}

// Progress notes what the servers' stack writes, a line each.
type Progress struct{ Screen }

// Write notes a line.
func (p Progress) Write(text []byte) (int, error) {
	for line := range strings.Lines(string(text)) {
		p.Note("%s", strings.TrimRight(line, "\n"))
	}
	return len(text), nil
}

// Milliseconds is d in milliseconds.
func Milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }
