package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// ticksPerSecond is how often the screen moves on.
const ticksPerSecond = 5

// burst is how many samples of one flow may come at once after it was silent. In the long run each flow shows one a second: together that is what a person
// can follow, and no flow's lines drown another's.
const burst = 2

// screen writes notes, a sample of each flow in each second and lines of rates. On a
// terminal that line stays at the bottom; elsewhere it is written every few
// seconds. It is safe for concurrent use.
type screen struct {
	mu       sync.Mutex
	out      io.Writer
	terminal bool
	rates    []func() string
	shown    string         // the rate line at the bottom, on a terminal
	room     map[string]int // sample lines that each flow has left
	broken   error          // nobody can see what is written any more
}

func newScreen(out *os.File) *screen {
	info, err := out.Stat()
	return &screen{out: out, terminal: err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("TERM") != "dumb"}
}

// note writes a line about the demo itself.
func (s *screen) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("== " + fmt.Sprintf(format, args...))
}

// Write takes the stack's progress lines.
func (s *screen) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		s.note("%s", strings.TrimRight(line, "\n"))
	}
	return len(p), nil
}

// status adds a function that returns a line of rates, called about once a second.
func (s *screen) status(line func() string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rates = append(s.rates, line)
}

// sample shows a line of a flow if this moment has room for one; most are never written.
func (s *screen) sample(flow string, line func() string) {
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

// refresh keeps the rates current and makes room for samples until ctx ends.
func (s *screen) refresh(ctx context.Context) error {
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

// current returns the rate lines. s.mu is not held while they are made: who makes one takes a lock of
// its own, which others hold when they show a sample.
func (s *screen) current() (lines []string) {
	s.mu.Lock()
	rates := s.rates
	s.mu.Unlock()
	for _, line := range rates {
		lines = append(lines, line())
	}
	return lines
}

// rate writes the rate lines. s.mu is held.
func (s *screen) rate(lines []string) {
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
func (s *screen) write(text string) {
	if _, err := io.WriteString(s.out, text); err != nil && s.broken == nil {
		s.broken = err
	}
}

// line writes a line above the rate line. s.mu is held.
func (s *screen) line(text string) {
	if s.shown == "" {
		s.write(text + "\n")
		return
	}
	s.write("\r\033[K" + text + "\n" + s.shown)
}

// end leaves the bottom line where it is.
func (s *screen) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown != "" {
		s.write("\n")
		s.shown = ""
	}
}

// table writes the checks of a flow.
func (s *screen) table(name string, checks []check) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.line("")
	s.line(fmt.Sprintf("%-56s %12s %12s", name, "want", "got"))
	for _, c := range checks {
		verdict := "ok"
		if !c.ok() {
			verdict = "DIFFERS"
		}
		s.line(fmt.Sprintf("  %-54s %12d %12d  %s", c.what, c.want, c.got, verdict))
	}
	s.line("")
}
