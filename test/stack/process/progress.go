package process

import (
	"fmt"
	"io"
	"strings"
	"sync"
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
