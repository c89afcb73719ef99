package messaging

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"go.uber.org/zap"
)

// faults remembers why connections to brokers failed. The underlying client tells
// its log only (pulsar-client-go v0.21.0 connection.go: callers hear "connection
// error"), so its log is where they are taken from.
type faults struct {
	log *zap.Logger

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

const (
	// maxFaults bounds faults.present: brokers may come and go under new addresses.
	maxFaults = 16
	// faultGrace is how long a lookup may go on before a fault ends its caller's
	// wait with an explanation: another host of the URL may do.
	faultGrace = time.Second
	// lookupKept is how long a lookup's result is kept for a caller that waits no
	// more.
	lookupKept = 5 * time.Second
)

func newFaults(log *zap.Logger) *faults {
	return &faults{log: log, changed: make(chan struct{}), refused: func() {}}
}

// onRefused sets what to do when a broker refused the credentials.
func (f *faults) onRefused(do func()) { f.refused = do }

// note records that a connection to broker failed, and logs it when trying again
// will not help and the log does not say so yet. Brokers that are away are the
// business of those who need them.
func (f *faults) note(broker string, err error) {
	f.mu.Lock()
	known := false
	f.present = slices.DeleteFunc(f.present, func(have fault) bool {
		if have.broker != broker {
			return false
		}
		known = have.err.Error() == err.Error()
		return true
	})
	f.present = append(f.present, fault{broker, err, time.Now()})
	if len(f.present) > maxFaults {
		f.present = slices.Delete(f.present, 0, 1)
	}
	close(f.changed)
	f.changed = make(chan struct{})
	f.mu.Unlock()
	if lasting(err) && !known {
		f.log.Warn("cannot connect to broker, will keep trying", zap.String("broker", broker), zap.Error(err))
	}
}

// clear records that broker was connected to.
func (f *faults) clear(broker string) {
	f.mu.Lock()
	was := len(f.present)
	f.present = slices.DeleteFunc(f.present, func(have fault) bool { return have.broker == broker })
	cleared := len(f.present) < was
	f.mu.Unlock()
	if cleared {
		f.log.Debug("connected to broker", zap.String("broker", broker))
	}
}

// since is the latest fault noted after t, one that lasts before any other, or nil;
// changed is closed at the next.
func (f *faults) since(t time.Time) (changed <-chan struct{}, err error) {
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

// explain makes an error of a request that began at t say what it hides.
func (f *faults) explain(t time.Time, err error) error {
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

// faultLogger reads the underlying client's log lines for faults on their way to
// the log.
type faultLogger struct {
	log.Logger
	faults *faults
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

// Info hears that a connection is ready.
func (l faultLogger) Info(args ...any) {
	if l.broker != "" && len(args) == 1 && args[0] == "Connection is ready" {
		l.faults.clear(l.broker)
	}
	l.Logger.Info(args...)
}

// Warnf hears the broker's answer to the handshake.
func (l faultLogger) Warnf(format string, args ...any) {
	if l.broker != "" && len(args) == 1 && strings.HasPrefix(format, "Failed to establish connection with broker") {
		err := fmt.Errorf("the broker says %q", args[0])
		if text := fmt.Sprint(args[0]); strings.Contains(text, "uthenticat") || text == "" {
			err = fmt.Errorf("%w: %w", ErrAuthentication, err)
			l.faults.refused()
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

// Warn hears what kept a connection from being made.
func (e faultEntry) Warn(args ...any) {
	if e.l.broker != "" && len(args) == 1 {
		switch text := fmt.Sprint(args[0]); {
		case strings.HasPrefix(text, "Failed to load auth credentials"):
			err := e.err
			if !errors.Is(err, errIssuerAway) {
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

// explainedClient is an underlying client whose errors say what was in the way.
type explainedClient struct {
	pulsar.Client
	faults *faults

	mu      sync.Mutex
	lookups map[string]*lookup
	failing map[string]bool // topics whose lookup failed, and the log says so
}

// lookup is a request for a topic's partitions that goes on after its caller.
type lookup struct {
	began  time.Time
	done   chan struct{}
	topics []string
	err    error
	ended  time.Time // valid, as the two above, once done is closed
}

// TopicPartitions returns, after a moment, as soon as it is known what is in the
// way. The request goes on behind until the operation timeout, and calls after
// that one join it: a broker that refuses us is not asked more often.
func (c *explainedClient) TopicPartitions(topic string) ([]string, error) {
	l := c.lookup(topic)
	grace := time.NewTimer(time.Until(l.began.Add(faultGrace)))
	defer grace.Stop()
	select {
	case <-l.done:
		return c.result(topic, l)
	case <-grace.C:
	}
	for {
		changed, err := c.faults.since(l.began)
		select {
		case <-l.done:
			return c.result(topic, l)
		default:
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-l.done:
		case <-changed:
		}
	}
}

func (c *explainedClient) lookup(topic string) *lookup {
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.lookups[topic]; l != nil {
		select {
		case <-l.done:
			if time.Since(l.ended) < lookupKept {
				return l
			}
		default:
			return l
		}
	}
	l := &lookup{began: time.Now(), done: make(chan struct{})}
	c.lookups[topic] = l
	go func() {
		defer close(l.done)
		topics, err := c.Client.TopicPartitions(topic)
		l.topics, l.err, l.ended = topics, c.faults.explain(l.began, err), time.Now()
		c.say(topic, l.err)
	}()
	return l
}

// say logs the first of several failures in a row, unless the broker's fault was
// logged.
func (c *explainedClient) say(topic string, err error) {
	c.mu.Lock()
	known := c.failing[topic]
	if err == nil {
		delete(c.failing, topic)
	} else {
		c.failing[topic] = true
	}
	c.mu.Unlock()
	if err != nil && !known && !lasting(err) {
		c.faults.log.Warn("cannot look up topic", zap.String("topic", topic), zap.Error(err))
	}
}

// result is the lookup's, for those who waited and for nobody after them.
func (c *explainedClient) result(topic string, l *lookup) ([]string, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lookups[topic] == l {
		delete(c.lookups, topic)
	}
	return slices.Clone(l.topics), l.err
}

// CreateProducer is the underlying client's, with the reason in its error.
func (c *explainedClient) CreateProducer(o pulsar.ProducerOptions) (pulsar.Producer, error) {
	began := time.Now()
	p, err := c.Client.CreateProducer(o)
	return p, c.faults.explain(began, err)
}

// Subscribe is the underlying client's, with the reason in its error.
func (c *explainedClient) Subscribe(o pulsar.ConsumerOptions) (pulsar.Consumer, error) {
	began := time.Now()
	s, err := c.Client.Subscribe(o)
	return s, c.faults.explain(began, err)
}

// CreateReader is the underlying client's, with the reason in its error.
func (c *explainedClient) CreateReader(o pulsar.ReaderOptions) (pulsar.Reader, error) {
	began := time.Now()
	r, err := c.Client.CreateReader(o)
	return r, c.faults.explain(began, err)
}
