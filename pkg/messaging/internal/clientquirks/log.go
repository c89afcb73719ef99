package clientquirks

import (
	"fmt"
	"strings"
	"sync"

	"github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/zap"
)

// NewLogger returns a logger that writes the client's log lines to zap on debug level, without its
// debug lines: there is one for every message. The library logs what matters itself.
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
	l.s = l.s.With(fields...)
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

// LogWatcher gets what the client reports by log line only. The client calls it with locks held.
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

// ConnectStep is the step in which a connection to a broker failed.
type ConnectStep int

// The steps of a connection.
const (
	StepConnect     ConnectStep = iota // TCP, TLS, or no answer to the handshake
	StepTLSFiles                       // reading certificates and keys
	StepCredentials                    // reading or fetching the credentials
	StepRefused                        // the broker's answer to the handshake is an error
)

// ConnectionObserver learns how connections to brokers fare. The client calls it from its
// goroutines.
type ConnectionObserver interface {
	Connected(broker string)
	ConnectFailed(broker string, step ConnectStep, err error)
}

// ObserveConnections returns a logger for a client that reports to o and passes its lines on to
// to. The client's callers see "connection error" only; the cause is in log lines (connection.go,
// connect and doHandshake). If the client changes their texts, causes are missing from errors and
// the log, and a refused OAuth2 token stays in use.
func ObserveConnections(to log.Logger, o ConnectionObserver) log.Logger {
	return connectionLogger{Logger: to, observer: o}
}

type connectionLogger struct {
	log.Logger
	observer ConnectionObserver
	broker   string // empty for lines that are not of a connection
}

// SubLogger notes which broker a connection's lines are about.
func (l connectionLogger) SubLogger(f log.Fields) log.Logger {
	l.Logger = l.Logger.SubLogger(f)
	if at, ok := f["remote_addr"]; ok {
		l.broker = strings.TrimPrefix(strings.TrimPrefix(fmt.Sprint(at), "pulsar://"), "pulsar+ssl://")
	}
	return l
}

// WithError keeps the error for the line that follows.
func (l connectionLogger) WithError(err error) log.Entry {
	return connectionEntry{Entry: l.Logger.WithError(err), l: l, err: err}
}

func (l connectionLogger) Info(args ...any) {
	if l.broker != "" && len(args) == 1 && args[0] == "Connection is ready" {
		l.observer.Connected(l.broker)
	}
	l.Logger.Info(args...)
}

func (l connectionLogger) Warnf(format string, args ...any) {
	if l.broker != "" && len(args) == 1 && strings.HasPrefix(format, "Failed to establish connection with broker") {
		l.observer.ConnectFailed(l.broker, StepRefused, fmt.Errorf("the broker says %q", args[0]))
	}
	l.Logger.Warnf(format, args...)
}

type connectionEntry struct {
	log.Entry
	l   connectionLogger
	err error
}

func (e connectionEntry) Warn(args ...any) {
	if e.l.broker != "" && len(args) == 1 {
		for text, step := range map[string]ConnectStep{
			"Failed to load auth credentials":     StepCredentials,
			"Failed to configure TLS":             StepTLSFiles,
			"Failed to connect to broker":         StepConnect,
			"Failed to perform initial handshake": StepConnect,
		} {
			if strings.HasPrefix(fmt.Sprint(args[0]), text) {
				e.l.observer.ConnectFailed(e.l.broker, step, e.err)
			}
		}
	}
	e.Entry.Warn(args...)
}
