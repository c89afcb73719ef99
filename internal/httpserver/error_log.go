package httpserver

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"

	stdlog "log"
	"sync"
	"time"

	"go.uber.org/zap"
)

// connectionErrorInterval is how often an error of a connection is logged.
const connectionErrorInterval = 10 * time.Second

// connectionErrors logs the errors of connections that net/http reports, such as failed TLS handshakes.
// Anybody can cause them: one line in ten seconds is logged, with the number of those left out.
// Panics are always logged.
type connectionErrors struct {
	log *zap.Logger

	mu      sync.Mutex
	at      time.Time // of the last line
	leftOut int       // since then
}

// errorLog returns a logger for http.Server.ErrorLog.
func errorLog(log *zap.Logger) *stdlog.Logger { return stdlog.New(&connectionErrors{log: log}, "", 0) }

// Write is called with one line.
func (c *connectionErrors) Write(line []byte) (int, error) {
	c.mu.Lock()
	leftOut, now := c.leftOut, time.Now()
	panicked := bytes.Contains(line, []byte("panic serving"))
	if !panicked && now.Sub(c.at) < connectionErrorInterval {
		c.leftOut++
		c.mu.Unlock()
		return len(line), nil
	}
	if !panicked {
		c.at, c.leftOut = now, 0
	}
	c.mu.Unlock()
	text := string(bytes.TrimSpace(line))
	if panicked {
		c.log.Error("a request panicked", zap.String("text", text))
		return len(line), nil
	}
	c.log.Warn("an HTTP connection failed", zap.String("text", truncate.Text(text, refusal.MaxReason)), zap.Int("left_out", leftOut))
	return len(line), nil
}
