package clientquirks

import (
	"strings"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/zap"
)

// RawLogger writes the underlying client's log lines to zap, all on debug level: this package logs
// once what matters of them. It drops debug lines, which stand on the hot path.
//
// The client reports an incomplete chunked message that it gave up, and a corrupted message, by log
// line only. RawLogger passes both to the consumer's session.
type RawLogger struct {
	S        *zap.SugaredLogger
	Watched  *Watched
	consumer LogWatcher // that the lines are from; nil for others
}

var _ log.Logger = RawLogger{}
var _ log.Entry = RawLogger{}

func (l RawLogger) SubLogger(f log.Fields) log.Logger {
	l.consumer = l.Watched.of(f["name"])
	return l.with(pairs(f)...)
}

func (l RawLogger) WithFields(f log.Fields) log.Entry      { return l.with(pairs(f)...) }
func (l RawLogger) WithError(err error) log.Entry          { return l.with(zap.Error(err)) }
func (l RawLogger) WithField(name string, v any) log.Entry { return l.with(name, v) }

func (l RawLogger) with(fields ...any) RawLogger {
	l.S = l.S.With(fields...)
	return l
}

func (l RawLogger) Debug(...any)          {}
func (l RawLogger) Debugf(string, ...any) {}
func (l RawLogger) Info(args ...any)      { l.S.Debug(args...) }

// Infof looks for what consumer_partition.go (pulsar-client-go v0.21.0) says of chunks.
func (l RawLogger) Infof(f string, a ...any) {
	if l.consumer != nil && strings.HasPrefix(f, "Chunked message [%s] has been removed") {
		l.consumer.NoteChunksGivenUp()
	}
	l.S.Debugf(f, a...)
}

func (l RawLogger) Warn(args ...any)          { l.S.Debug(args...) }
func (l RawLogger) Warnf(f string, a ...any)  { l.S.Debugf(f, a...) }
func (l RawLogger) Errorf(f string, a ...any) { l.S.Debugf(f, a...) }

// Error looks for what discardCorruptedMessage of the same file says.
func (l RawLogger) Error(args ...any) {
	if l.consumer != nil && len(args) > 0 && args[0] == "Discarding corrupted message" {
		l.consumer.NoteCorrupted(l.S.Desugar())
	}
	l.S.Debug(args...)
}

func pairs(f log.Fields) []any {
	kv := make([]any, 0, 2*len(f))
	for k, v := range f {
		kv = append(kv, k, v)
	}
	return kv
}

// LogWatcher is a consumer that needs to know what the underlying client says by log line only. It
// is called with locks of the underlying client held.
type LogWatcher interface {
	NoteChunksGivenUp()
	NoteCorrupted(log *zap.Logger)
}

// Watched finds the watcher of a log line by the consumer's name. It is safe for concurrent use.
type Watched struct{ byName sync.Map }

// Store makes w the watcher of the lines of the consumers of that name.
func (w *Watched) Store(name string, to LogWatcher) { w.byName.Store(name, to) }

// Delete ends what Store began.
func (w *Watched) Delete(name string) { w.byName.Delete(name) }

func (w *Watched) of(name any) LogWatcher {
	found, _ := w.byName.Load(name)
	to, _ := found.(LogWatcher)
	return to
}
