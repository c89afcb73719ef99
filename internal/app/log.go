package app

import (
	"bytes"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// logTimeout is how long a line waits for the log's reader once the process stops.
const logTimeout = time.Second

// logWriter writes lines to w, one at a time. While the process works, a line waits until w takes
// it. Once the process stops, a line waits for logTimeout at most. While w is stuck, later lines
// are dropped: a reader that has stopped reading must not delay the stop.
type logWriter struct {
	w     io.Writer
	turn  chan struct{} // holds one element while nothing is written
	ends  chan struct{} // closed when the process stops
	once  sync.Once
	stuck atomic.Bool // a line has waited in vain, and w still blocks
}

func newLogWriter(w io.Writer) *logWriter {
	l := &logWriter{w: w, turn: make(chan struct{}, 1), ends: make(chan struct{})}
	l.turn <- struct{}{}
	return l
}

// stopping says that the process stops.
func (l *logWriter) stopping() { l.once.Do(func() { close(l.ends) }) }

// Write returns no errors: there is no other place to report them.
func (l *logWriter) Write(line []byte) (int, error) {
	if !l.await(l.turn) {
		return len(line), nil
	}
	written := make(chan struct{})
	go func(line []byte) { // the caller reuses its memory, and this may take longer
		_, _ = l.w.Write(line)
		l.stuck.Store(false)
		close(written)
		l.turn <- struct{}{}
	}(bytes.Clone(line))
	l.await(written)
	return len(line), nil
}

// await returns false when c must not be waited for any longer.
func (l *logWriter) await(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	case <-l.ends:
	}
	timeout := logTimeout
	if l.stuck.Load() {
		timeout = 0
	}
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-c:
		return true
	case <-timer.C:
		l.stuck.Store(true)
		return false
	}
}

// formatFor returns the format of a log that is written to w. auto is console for a terminal, and
// JSON otherwise.
func formatFor(format string, w io.Writer) string {
	if format != formatAuto {
		return format
	}
	if file, ok := w.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return formatConsole
		}
	}
	return formatJSON
}

// newLogger returns a logger that writes to w, which is safe for concurrent use. Repeated messages
// are sampled: in each second the first hundred are written, and then every hundredth.
func newLogger(cfg LogConfig, w io.Writer) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(cfg.Level)
	if err != nil {
		return nil, err
	}
	keys := zap.NewProductionEncoderConfig()
	keys.EncodeTime = zapcore.ISO8601TimeEncoder
	keys.EncodeDuration = zapcore.StringDurationEncoder
	encoder := zapcore.NewJSONEncoder(keys)
	if cfg.Format == formatConsole {
		encoder = zapcore.NewConsoleEncoder(keys)
	}
	core := zapcore.NewCore(encoder, zapcore.AddSync(w), level)
	return zap.New(zapcore.NewSamplerWithOptions(core, time.Second, 100, 100)), nil
}
