package display

import (
	"context"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// ticksPerSecond is how often the screen moves on.
const ticksPerSecond = 5

// burst is how many samples of one flow may come at once after it was silent. In the long run each
// flow shows one a second: together that is what a person can follow, and no flow's lines drown
// another's.
const burst = 2

// Lines writes notes, a sample of each flow in each second and lines of rates. On a
// terminal that line stays at the bottom; elsewhere it is written every few
// seconds. It is safe for concurrent use.
type Lines struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	rates    []*shownFlow
	shown    string         // the rate line at the bottom, on a terminal
	room     map[string]int // sample lines that each flow has left
	broken   error          // nobody can see what is written any more
}

// shownFlow is a line of rates.
type shownFlow struct {
	panel   string
	figures func() Figures
	meter   meter
}

// NewLines returns a screen that writes to out.
func NewLines(out io.Writer) *Lines {
	s := &Lines{out: out}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"
	}
	return s
}

// Note writes a line about the demo itself.
func (s *Lines) Note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("== " + fmt.Sprintf(format, args...))
}

// Waiting writes nothing: the notes say it.
func (s *Lines) Waiting(string, string) {}

// Control does nothing: there are no keys.
func (s *Lines) Control(string, Controlled) {}

// Address writes a line.
func (s *Lines) Address(panel, what, address string) { s.Note("%s  %s  %s", panel, what, address) }

// Status adds a line of rates.
func (s *Lines) Status(panel string, figures func() Figures) {
	f := &shownFlow{panel: panel, figures: figures}
	f.meter.read(figures()) // s.mu is not held, as in current
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates = append(s.rates, f)
}

// Sample shows a line of a flow if this moment has room for one; most are never written.
func (s *Lines) Sample(flow string, line func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left, known := s.room[flow]
	if !known {
		left = burst
	}
	if left == 0 {
		return
	}
	if s.room == nil {
		s.room = map[string]int{}
	}
	s.room[flow] = left - 1
	s.line(fmt.Sprintf("   %-15s  %s", flow, line()))
}

// Refresh keeps the rates current and makes room for samples until ctx ends.
func (s *Lines) Refresh(ctx context.Context) error {
	tick := time.NewTicker(time.Second / ticksPerSecond)
	defer tick.Stop()
	every := ticksPerSecond
	if !s.terminal {
		every *= 5
	}
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
		var rates []string
		if n%every == 0 {
			rates = s.current()
		}
		s.mu.Lock()
		if n%ticksPerSecond == 0 {
			for flow, left := range s.room {
				s.room[flow] = min(left+1, burst)
			}
		}
		s.rate(rates)
		broken := s.broken
		s.mu.Unlock()
		if broken != nil {
			return fmt.Errorf("nobody watches: %w", broken)
		}
	}
}

// current returns the rate lines. s.mu is not held while they are made: who makes one takes a lock
// of its own, which others hold when they show a sample.
func (s *Lines) current() (lines []string) {
	s.mu.Lock()
	rates := s.rates
	s.mu.Unlock()
	for _, r := range rates {
		f := r.figures()
		lines = append(lines, f.text(r.panel, r.meter.read(f)))
	}
	return lines
}

// rate writes the rate lines. s.mu is held.
func (s *Lines) rate(lines []string) {
	for _, line := range lines {
		if !s.terminal || len(lines) > 1 {
			s.line("-- " + line)
			continue
		}
		s.shown = "-- " + line
		s.write("\r\033[K" + s.shown)
	}
}

// write notes the first failure. s.mu is held.
func (s *Lines) write(text string) {
	if _, err := io.WriteString(s.out, text); err != nil && s.broken == nil {
		s.broken = err
	}
}

// line writes a line above the rate line. s.mu is held.
func (s *Lines) line(text string) {
	if s.shown == "" {
		s.write(text + "\n")
		return
	}
	s.write("\r\033[K" + text + "\n" + s.shown)
}

// End leaves the bottom line where it is.
func (s *Lines) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown != "" {
		s.write("\n")
		s.shown = ""
	}
}

// Table writes the checks of a flow.
func (s *Lines) Table(name string, checks []Check) {
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
