package clientquirks

import (
	"strings"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/zap"
)

// NewLogger returns a logger that writes the client's log lines to zap on debug level; the library
// logs what matters of them itself. It drops the client's debug lines, which it writes for every
// message.
//
// The client reports only by log line that it gave up an incomplete chunked message and that it
// acknowledged a corrupted message (consumer_partition.go, chunkedMsgCtxMap and
// discardCorruptedMessage). The logger passes both to the consumer's LogWatcher. If the client
// changes the texts, such messages are lost without a metric, and consumers do not resubscribe
// for chunks.
func NewLogger(to *zap.Logger, watched *Watched) log.Logger {
	return rawLogger{s: to.Sugar(), watched: watched}
}

type rawLogger struct {
	s        *zap.SugaredLogger
	watched  *Watched
	consumer LogWatcher // whose lines these are, or nil
}

func (l rawLogger) SubLogger(f log.Fields) log.Logger {
	l.consumer = l.watched.of(f["name"])
	return l.with(pairs(f)...)
}

func (l rawLogger) WithFields(f log.Fields) log.Entry      { return l.with(pairs(f)...) }
func (l rawLogger) WithError(err error) log.Entry          { return l.with(zap.Error(err)) }
func (l rawLogger) WithField(name string, v any) log.Entry { return l.with(name, v) }

func (l rawLogger) with(fields ...any) rawLogger {
	l.s = l.s.WithLazy(fields...)
	return l
}

func (l rawLogger) Debug(...any)          {}
func (l rawLogger) Debugf(string, ...any) {}
func (l rawLogger) Info(args ...any)      { l.s.Debug(args...) }

func (l rawLogger) Infof(f string, a ...any) {
	if l.consumer != nil && strings.HasPrefix(f, "Chunked message [%s] has been removed") {
		l.consumer.NoteChunksGivenUp()
	}
	l.s.Debugf(f, a...)
}

func (l rawLogger) Warn(args ...any)          { l.s.Debug(args...) }
func (l rawLogger) Warnf(f string, a ...any)  { l.s.Debugf(f, a...) }
func (l rawLogger) Errorf(f string, a ...any) { l.s.Debugf(f, a...) }

func (l rawLogger) Error(args ...any) {
	if l.consumer != nil && len(args) > 0 && args[0] == "Discarding corrupted message" {
		l.consumer.NoteCorrupted(l.s.Desugar())
	}
	l.s.Debug(args...)
}

func pairs(f log.Fields) []any {
	kv := make([]any, 0, 2*len(f))
	for k, v := range f {
		kv = append(kv, k, v)
	}
	return kv
}

// LogWatcher gets events that the client reports only in its log. The client calls it with locks
// held.
type LogWatcher interface {
	NoteChunksGivenUp()
	NoteCorrupted(log *zap.Logger)
}

// Watched maps names of consumers to their watchers. It is safe for concurrent use.
type Watched struct{ byName sync.Map }

// Store makes to the watcher of the consumers of that name.
func (w *Watched) Store(name string, to LogWatcher) { w.byName.Store(name, to) }

// Delete removes the watcher of the consumers of that name.
func (w *Watched) Delete(name string) { w.byName.Delete(name) }

func (w *Watched) of(name any) LogWatcher {
	found, _ := w.byName.Load(name)
	to, _ := found.(LogWatcher)
	return to
}
