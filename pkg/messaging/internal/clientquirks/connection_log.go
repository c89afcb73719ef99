package clientquirks

import (
	"fmt"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar/log"
)

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
		for _, line := range []struct {
			text string
			step ConnectStep
		}{
			{"Failed to load auth credentials", StepCredentials},
			{"Failed to configure TLS", StepTLSFiles},
			{"Failed to connect to broker", StepConnect},
			{"Failed to perform initial handshake", StepConnect},
		} {
			if strings.HasPrefix(fmt.Sprint(args[0]), line.text) {
				e.l.observer.ConnectFailed(e.l.broker, line.step, e.err)
			}
		}
	}
	e.Entry.Warn(args...)
}
