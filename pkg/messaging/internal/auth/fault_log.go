package auth

import (
	"errors"
	"fmt"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar/log"
)

// Logger returns a logger for an underlying client that passes its lines on to to and reads them
// for faults.
func (f *Faults) Logger(to log.Logger) log.Logger { return faultLogger{Logger: to, faults: f} }

type faultLogger struct {
	log.Logger
	faults *Faults
	broker string
}

// SubLogger learns which broker a connection's lines are about.
func (l faultLogger) SubLogger(f log.Fields) log.Logger {
	l.Logger = l.Logger.SubLogger(f)
	if at, ok := f["remote_addr"]; ok {
		l.broker = strings.TrimPrefix(strings.TrimPrefix(fmt.Sprint(at), "pulsar://"), "pulsar+ssl://")
	}
	return l
}

// WithError keeps the error for the line that follows.
func (l faultLogger) WithError(err error) log.Entry {
	return faultEntry{Entry: l.Logger.WithError(err), l: l, err: err}
}

// Info is told that a connection is ready.
func (l faultLogger) Info(args ...any) {
	if l.broker != "" && len(args) == 1 && args[0] == "Connection is ready" {
		l.faults.clear(l.broker)
	}
	l.Logger.Info(args...)
}

// Warnf is given the broker's answer to the handshake.
func (l faultLogger) Warnf(format string, args ...any) {
	if l.broker != "" && len(args) == 1 && strings.HasPrefix(format, "Failed to establish connection with broker") {
		err := fmt.Errorf("the broker says %q", args[0])
		if text := fmt.Sprint(args[0]); strings.Contains(text, "uthenticat") || text == "" {
			err = fmt.Errorf("%w: %w", ErrAuthentication, err)
			l.faults.Refused()
		}
		l.faults.note(l.broker, err)
	}
	l.Logger.Warnf(format, args...)
}

type faultEntry struct {
	log.Entry
	l   faultLogger
	err error
}

// Warn is told what kept a connection from being made.
func (e faultEntry) Warn(args ...any) {
	if e.l.broker != "" && len(args) == 1 {
		switch text := fmt.Sprint(args[0]); {
		case strings.HasPrefix(text, "Failed to load auth credentials"):
			err := e.err
			if !errors.Is(err, ErrIssuerUnavailable) {
				err = fmt.Errorf("%w: %w", ErrAuthentication, err)
			}
			e.l.faults.note(e.l.broker, err)
		case strings.HasPrefix(text, "Failed to configure TLS"):
			e.l.faults.note(e.l.broker, fmt.Errorf("%w: %w", ErrTLS, e.err))
		case strings.HasPrefix(text, "Failed to connect to broker"), strings.HasPrefix(text, "Failed to perform initial handshake"):
			err := e.err
			if strings.Contains(err.Error(), "tls: ") {
				err = fmt.Errorf("%w: %w", ErrTLS, err)
			}
			e.l.faults.note(e.l.broker, err)
		}
	}
	e.Entry.Warn(args...)
}
