package display

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// interval is the time between two lines of figures of a flow.
	interval = 5 * time.Second
	// maxSamples is how many records of one flow may be written in the first second after a pause.
	// Later it is one record a second, so that people can follow and each flow is seen.
	maxSamples = 2
)

// Screen writes lines: notes, a record of each flow in each second, and the figures of each flow
// every 5 seconds. It is safe for concurrent use.
type Screen struct {
	mu      sync.Mutex
	out     io.Writer
	flows   []*shownFlow
	samples map[string]int // how many records of a flow may be written now
	err     error          // of the first write that failed
}

// shownFlow is a flow whose figures are written.
type shownFlow struct {
	name    string
	figures func() Figures
	last    reading
}

// New returns a screen that writes to out.
func New(out io.Writer) *Screen { return &Screen{out: out, samples: map[string]int{}} }

// Note writes a line about the demo itself.
func (s *Screen) Note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("== " + fmt.Sprintf(format, args...))
}

// Address writes an address to open or to connect to.
func (s *Screen) Address(flow, what, address string) { s.Note("%s  %s  %s", flow, what, address) }

// Status adds the figures of a flow. The screen calls figures every 5 seconds; figures must not
// block.
func (s *Screen) Status(flow string, figures func() Figures) {
	f := &shownFlow{name: flow, figures: figures}
	f.last = reading{at: time.Now(), Figures: figures()} // s.mu is not held, as in writeFigures
	s.mu.Lock()
	defer s.mu.Unlock()
	s.flows = append(s.flows, f)
}

// Sample writes a record that has arrived, unless the flow has written enough in this second. It
// calls line only if it writes.
func (s *Screen) Sample(flow string, line func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, known := s.samples[flow]
	if !known {
		left = maxSamples
	}
	if left == 0 {
		return
	}
	s.samples[flow] = left - 1
	s.line(fmt.Sprintf("   %-15s  %s", flow, line()))
}

// Refresh writes figures until ctx ends, and once more then.
func (s *Screen) Refresh(ctx context.Context) error {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	figures := time.NewTicker(interval)
	defer figures.Stop()
	for {
		select {
		case <-ctx.Done():
			s.writeFigures()
			return ctx.Err()
		case <-figures.C:
			s.writeFigures()
		case <-second.C:
			s.allowSamples()
		}
		if err := s.failure(); err != nil {
			return fmt.Errorf("cannot write to the screen: %w", err)
		}
	}
}

// allowSamples allows each flow one more record.
func (s *Screen) allowSamples() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for flow, left := range s.samples {
		s.samples[flow] = min(left+1, maxSamples)
	}
}

// writeFigures writes a line for each flow. s.mu is not held while a flow makes its figures: the flow
// takes its own lock, which it may also hold when it calls Sample.
func (s *Screen) writeFigures() {
	s.mu.Lock()
	flows := s.flows
	s.mu.Unlock()
	for _, f := range flows {
		now := reading{at: time.Now(), Figures: f.figures()}
		text := now.text(f.name, now.ratesSince(f.last))
		f.last = now
		s.mu.Lock()
		s.line("-- " + text)
		s.mu.Unlock()
	}
}

func (s *Screen) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// line writes a line and keeps the first error. s.mu is held.
func (s *Screen) line(text string) {
	if _, err := io.WriteString(s.out, text+"\n"); err != nil && s.err == nil {
		s.err = err
	}
}

// Check is one line of the table that a smoke run ends with.
type Check struct {
	What      string
	Want, Got int64
}

// OK reports whether the check has passed.
func (c Check) OK() bool { return c.Want == c.Got }

// Table writes the checks of a flow.
func (s *Screen) Table(name string, checks []Check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("")
	s.line(fmt.Sprintf("%-56s %12s %12s", name, "want", "got"))
	for _, c := range checks {
		verdict := "ok"
		if !c.OK() {
			verdict = "DIFFERS"
		}
		s.line(fmt.Sprintf("  %-54s %12d %12d  %s", c.What, c.Want, c.Got, verdict))
	}
	s.line("")
}
