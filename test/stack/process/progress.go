package process

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Progress writes one line per event; it may be used by several goroutines.
type Progress struct {
	mu sync.Mutex
	w  io.Writer
}

// NewProgress returns a Progress that writes to w; nil: nowhere.
func NewProgress(w io.Writer) *Progress {
	if w == nil {
		w = io.Discard
	}
	return &Progress{w: w}
}

// Printf writes a line.
func (p *Progress) Printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.w, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}

// During writes what report returns at each interval, until the caller calls end; nothing is written
// after end. report gets the time since During began.
func (p *Progress) During(interval time.Duration, report func(elapsed time.Duration) string) (end func()) {
	began, stop, stopped := time.Now(), make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticker := time.NewTicker(interval)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
				p.Printf("  %s", report(time.Since(began).Round(time.Second)))
			}
		}
	}()
	return func() { close(stop); <-stopped }
}
