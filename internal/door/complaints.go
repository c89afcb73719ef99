package door

import (
	"bytes"
	stdlog "log"
	"sync"
	"time"

	"go.uber.org/zap"
)

// complaints takes what net/http has to say of connections, such as failed handshakes of TLS, which anybody can cause: one line in ten seconds is
// logged, and how many were not. Panics are logged always.
type complaints struct {
	log *zap.Logger

	mu      sync.Mutex
	at      time.Time // of the last line
	leftOut int       // since then
}

// errorLog is for http.Server.ErrorLog.
func errorLog(log *zap.Logger) *stdlog.Logger { return stdlog.New(&complaints{log: log}, "", 0) }

// Write is called with one line.
func (c *complaints) Write(line []byte) (int, error) {
	c.mu.Lock()
	leftOut, now := c.leftOut, time.Now()
	panicked := bytes.Contains(line, []byte("panic serving"))
	if !panicked && now.Sub(c.at) < refusalInterval {
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
	c.log.Warn("the HTTP server complains of a connection", zap.String("text", Cut(text, MaxReason)), zap.Int("left_out", leftOut))
	return len(line), nil
}
