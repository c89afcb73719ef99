package stack

import (
	"fmt"
	"io"
	"strings"
	"sync"
)

// progress writes one line per event; it may be used by several goroutines.
type progress struct {
	mu sync.Mutex
	w  io.Writer
}

func newProgress(w io.Writer) *progress {
	if w == nil {
		w = io.Discard
	}
	return &progress{w: w}
}

func (p *progress) printf(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.w, strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; "))
}
