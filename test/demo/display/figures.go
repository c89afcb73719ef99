package display

import (
	"fmt"
	"strings"
	"time"
)

// Figures are what a flow has counted. A nil pointer means that the count is not known.
type Figures struct {
	Unit     string // what is counted
	From, To string // the systems at both ends
	Sent     *int64
	Arrived  int64         // each record once
	Bytes    int64         // that arrived, 0 if they are not counted
	Missing  *int64        // sent more than Overdue ago, and not arrived
	Twice    *int64        // arrived again
	Lag      time.Duration // 0 if it is not known
	More     []string      // what only this flow has
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

// text is a line with all figures.
func (f Figures) text(flow string, r rates) string {
	groups := []string{strings.Join(f.traffic(r), ", "), strings.Join(f.balance(), ", ")}
	if len(f.More) > 0 {
		groups = append(groups, strings.Join(f.More, ", "))
	}
	return flow + "  " + strings.Join(groups, "; ")
}

// short writes a duration with about two digits.
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

// Milliseconds is d in milliseconds.
func Milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

// rates are how much figures grew, per second.
type rates struct{ sent, arrived, bytes float64 }

// reading are the figures at a time.
type reading struct {
	at time.Time
	Figures
}

// ratesSince returns the rates between an earlier reading and this one.
func (r reading) ratesSince(before reading) (grew rates) {
	seconds := r.at.Sub(before.at).Seconds()
	if seconds <= 0 {
		return grew
	}
	grew.arrived = max(0, float64(r.Arrived-before.Arrived)/seconds)
	grew.bytes = max(0, float64(r.Bytes-before.Bytes)/seconds)
	if r.Sent != nil && before.Sent != nil {
		grew.sent = max(0, float64(*r.Sent-*before.Sent)/seconds)
	}
	return grew
}
