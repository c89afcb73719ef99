// Package stdlog passes lines of Go's standard loggers to zap. Any client can cause such lines, and
// net/http repeats received data in them. The package imports internal/truncate only.
package stdlog

import (
	"bytes"
	"log"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/truncate"
)

const (
	// interval is how often a line is logged.
	interval = 10 * time.Second
	maxText  = 300
)

// writer logs one line in ten seconds, with the number of those left out. It cuts a line before the
// first double quote: the quoted text may come from a peer, and hold a token. Panics of HTTP
// handlers are always logged, as a whole.
type writer struct {
	log     *zap.Logger
	message string

	mu      sync.Mutex
	at      time.Time // of the last line
	leftOut int       // since then
}

// New returns a logger for one source of lines, such as http.Server.ErrorLog. Its lines have the
// given message.
func New(to *zap.Logger, message string) *log.Logger {
	return log.New(&writer{log: to, message: message}, "", 0)
}

// Redirect passes the lines of the process' standard logger to zap. net/http's client uses it.
func Redirect(to *zap.Logger) {
	log.SetFlags(0)
	log.SetOutput(New(to, "a Go package logged a line").Writer())
}

// Write is called with one line.
func (w *writer) Write(line []byte) (int, error) {
	if bytes.HasPrefix(line, []byte("http: panic serving ")) {
		w.log.Error("a request panicked", zap.ByteString("text", bytes.TrimSpace(line)))
		return len(line), nil
	}
	w.mu.Lock()
	leftOut, now := w.leftOut, time.Now()
	if now.Sub(w.at) < interval {
		w.leftOut++
		w.mu.Unlock()
		return len(line), nil
	}
	w.at, w.leftOut = now, 0
	w.mu.Unlock()
	text, _, cut := strings.Cut(strings.TrimSpace(string(line)), `"`)
	if text = truncate.Text(text, maxText); cut {
		text += "..."
	}
	w.log.Warn(w.message, zap.String("text", text), zap.Int("left_out", leftOut))
	return len(line), nil
}
