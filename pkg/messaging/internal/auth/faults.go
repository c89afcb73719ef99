package auth

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/throttle"
)

// Faults remembers why connections to brokers failed, from the underlying client's log. It is
// safe for concurrent use.
type Faults struct {
	log   *zap.Logger
	lines throttle.Changes // about brokers

	mu      sync.Mutex
	present []fault       // one per broker, the latest last
	changed chan struct{} // closed and replaced when present gains one
	refused func()
}

type fault struct {
	broker string
	err    error
	at     time.Time
}

// maxFaults bounds Faults.present: brokers may come and go under new addresses.
const maxFaults = 16

// NewFaults logs to log what does not pass by itself.
func NewFaults(log *zap.Logger) *Faults {
	return &Faults{log: log, changed: make(chan struct{}), refused: func() {}}
}

// Logger returns a logger for an underlying client that passes its lines on to to and reads them
// for faults.
func (f *Faults) Logger(to log.Logger) log.Logger { return clientquirks.ObserveConnections(to, f) }

// Connected records that broker was connected to.
func (f *Faults) Connected(broker string) {
	f.mu.Lock()
	f.present = slices.DeleteFunc(f.present, func(have fault) bool { return have.broker == broker })
	f.mu.Unlock()
	if f.lines.Forget(broker) {
		f.log.Debug("connected to broker", zap.String("broker", broker))
	}
}

// ConnectFailed records why a connection to broker failed.
func (f *Faults) ConnectFailed(broker string, step clientquirks.ConnectStep, err error) {
	var kind error
	switch text := err.Error(); step {
	case clientquirks.StepRefused:
		if strings.Contains(text, "uthenticat") || strings.HasSuffix(text, ` ""`) {
			kind = ErrAuthentication
			f.Refused()
		}
	case clientquirks.StepCredentials:
		if !errors.Is(err, ErrIssuerUnavailable) {
			kind = ErrAuthentication
		}
	case clientquirks.StepTLSFiles:
		kind = ErrTLS
	case clientquirks.StepConnect:
		if strings.Contains(text, "tls: ") {
			kind = ErrTLS
		}
	}
	if kind != nil {
		err = fmt.Errorf("%w: %w", kind, err)
	}
	f.note(broker, err)
}

// onRefused sets what to do when a broker refused the credentials. It is called before f is in use.
func (f *Faults) onRefused(do func()) { f.refused = do }

// Refused is called when a broker refused the credentials.
func (f *Faults) Refused() { f.refused() }

// note records that a connection to broker failed, and logs it when trying again
// will not help and the log does not say so yet. Brokers that are unavailable are the
// business of those who need them.
func (f *Faults) note(broker string, err error) {
	f.mu.Lock()
	f.present = slices.DeleteFunc(f.present, func(have fault) bool { return have.broker == broker })
	f.present = append(f.present, fault{broker, err, time.Now()})
	if len(f.present) > maxFaults {
		f.present = slices.Delete(f.present, 0, 1)
	}
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	if f.lines.Allow(broker, err.Error()) && lasting(err) {
		f.log.Warn("cannot connect to broker, will keep trying", zap.String("broker", broker), zap.Error(err))
	}
}

// since is the latest fault noted after t, one that lasts before any other, or nil;
// changed is closed at the next.
func (f *Faults) since(t time.Time) (changed <-chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, have := range slices.Backward(f.present) {
		if have.at.Before(t) {
			continue
		}
		named := fmt.Errorf("%s: %w", have.broker, have.err)
		if lasting(have.err) {
			return f.changed, named
		}
		if err == nil {
			err = named
		}
	}
	return f.changed, err
}

// lasting reports whether a fault will stay until somebody changes something.
func lasting(err error) bool { return errors.Is(err, ErrAuthentication) || errors.Is(err, ErrTLS) }

// explain adds the cause to an error of a request that began at t.
func (f *Faults) explain(t time.Time, err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "AuthorizationError"):
		return fmt.Errorf("%w: %w", ErrAuthorization, err)
	case strings.Contains(err.Error(), "connection error"):
		if _, cause := f.since(t); cause != nil {
			return fmt.Errorf("connection error: %w", cause)
		}
	}
	return err
}
