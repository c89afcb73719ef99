package messaging

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// copier holds the topics that a run copies messages to.
type copier struct {
	retry *copyTarget // nil: messages are held in place
	dead  *copyTarget
}

// copyTarget is a topic that copies go to. Its publisher is opened when first needed, in the
// background: a topic that cannot be opened must not occupy a worker. It is opened once a
// subscription keeps what is published there: brokers delete at once what no subscription waits
// for.
type copyTarget struct {
	publishers   *Publishers
	topic        string
	retry        bool
	subscription string // whose consumer copies
	keepFor      string // subscription to create on a dead-letter topic, "" for none
	profile      Profile
	log          *zap.Logger

	until      func() context.Context // ends when opening makes no more sense
	subscribed chan struct{}          // closed once the retry topic has its subscription

	opened sync.WaitGroup // goroutines that open or close a publisher

	mu        sync.Mutex
	open      *Publisher
	opening   bool
	closed    bool
	unhealthy error // why there is no publisher, nil while that is not known
	waited    int
}

// errNotKept: no subscription keeps what is published to the topic.
var errNotKept = errors.New("no subscription")

// copierConfig says what a run's copies are to be like.
type copierConfig struct {
	publishers   *Publishers
	log          *zap.Logger
	retry        Retry
	subscription string // whose consumer copies
	retryTopic   bool   // messages wait for another attempt on a topic
	pendingBytes int64  // of copies to a topic that are not stored yet, at most

	until func() context.Context // ends when opening makes no more sense
}

func newCopier(cfg copierConfig) *copier {
	target := func(name, topic string) *copyTarget {
		p := Business()
		p.Name, p.Compression = name, cfg.retry.Compression
		// Unbatched: copies with a delivery time travel alone anyway, and
		// Key_Shared readers of dead letters need it. A full queue must not block
		// a worker.
		p.BatchRecords, p.Admission, p.GroupCommit = 1, FailFast, false
		p.MaxPendingRecords, p.MaxPendingBytes = 1000, cfg.pendingBytes
		return &copyTarget{
			publishers: cfg.publishers, topic: fullTopicName(topic), subscription: cfg.subscription,
			profile: p, log: cfg.log, until: cfg.until, subscribed: make(chan struct{}),
		}
	}
	all := &copier{dead: target("dead_letter", cfg.retry.DeadLetterTopic)}
	if cfg.retry.DeadLetterSubscription != noSubscription {
		all.dead.keepFor = cfg.retry.DeadLetterSubscription
	}
	if cfg.retryTopic {
		all.retry = target("retry", cfg.retry.Topic)
		all.retry.retry = true
	}
	return all
}

// note takes the result of subscribing to the retry topic. The subscription of a retry topic is durable: it
// keeps copies from then on, also while the run is not connected to it.
func (c *copier) note(err error) {
	t := c.retry
	if t == nil || t.isSubscribed() {
		return
	}
	if err == nil {
		close(t.subscribed) // one receiver per source notes
		return
	}
	t.fail(fmt.Errorf("%w: %w", errNotKept, err))
}

// isSubscribed reports whether the run has subscribed to its retry topic.
func (t *copyTarget) isSubscribed() bool {
	select {
	case <-t.subscribed:
		return true
	default:
		return false
	}
}

// publisher returns the target's publisher. Without one it returns why, or nil while it is being
// opened for the first time.
func (t *copyTarget) publisher() (*Publisher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil && !t.opening && !t.closed {
		t.opening = true
		t.opened.Go(t.prepare)
	}
	return t.open, t.unhealthy
}

// openTimeout is how long to wait for a publisher that is being opened.
func (t *copyTarget) openTimeout() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waited = min(t.waited+1, 100)
	return time.Duration(t.waited) * 5 * time.Millisecond
}

// prepare opens the publisher, trying until the run stops.
func (t *copyTarget) prepare() {
	ctx := t.until()
	var pause backoff.Backoff
	for first := true; ctx.Err() == nil; first = false {
		err := t.awaitSubscription(ctx)
		var p *Publisher
		if err == nil {
			p, err = t.publishers.tryOpen(ctx, t.topic, t.profile)
		}
		if ctx.Err() != nil && err != nil {
			break
		}
		if first && err != nil {
			t.log.Error("cannot open a topic for copies, will keep trying: messages to be copied there are not acknowledged",
				zap.String("to", t.topic), zap.Error(err))
		}
		if err == nil {
			t.mu.Lock()
			t.open, t.unhealthy, t.opening, t.waited = p, nil, false, 0
			t.mu.Unlock()
			return
		}
		t.fail(err)
		wait := pause.Next()
		if errors.Is(err, ErrTopicTerminated) {
			wait = parkFor // only an operator can change that
		}
		backoff.Sleep(ctx, wait)
	}
	t.mu.Lock()
	t.opening = false
	t.mu.Unlock()
}

func (t *copyTarget) fail(err error) {
	t.mu.Lock()
	t.unhealthy = err
	t.mu.Unlock()
}

// discard closes a publisher that takes no record any more. The next copy opens another.
func (t *copyTarget) discard(p *Publisher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p == nil || t.open != p || t.closed {
		return
	}
	t.open = nil
	t.opened.Go(func() { _ = p.Close(canceled()) }) // every record on it gets its outcome
}

// awaitSubscription returns nil once a subscription keeps what is published. That of the retry
// topic is the run's own; it logs when it cannot subscribe.
func (t *copyTarget) awaitSubscription(ctx context.Context) error {
	switch {
	case t.retry:
		select {
		case <-t.subscribed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	case t.keepFor != "":
		return t.subscribe(ctx)
	default:
		return nil
	}
}

// subscribe creates the subscription that keeps dead letters, and leaves it without a consumer.
func (t *copyTarget) subscribe(ctx context.Context) error {
	if err := t.publishers.ensureSubscription(ctx, t.topic, t.keepFor, pulsar.SubscriptionPositionEarliest); err != nil {
		return fmt.Errorf("%w %s: %w", errNotKept, t.keepFor, err)
	}
	return nil
}

// close closes the publishers. No copy is under way any more, or ctx has ended.
func (c *copier) close(ctx context.Context) {
	for _, t := range []*copyTarget{c.retry, c.dead} {
		if t == nil {
			continue
		}
		t.mu.Lock()
		t.closed = true // none is opened from now on
		t.mu.Unlock()
		t.opened.Wait()
		t.mu.Lock()
		p := t.open
		t.mu.Unlock()
		if p == nil {
			continue
		}
		if err := p.Close(ctx); err != nil && !errors.Is(err, ErrUnacknowledged) {
			t.log.Warn("cannot close topic for copies", zap.String("to", t.topic), zap.Error(err))
		}
	}
}

// parkFor is how long a parked dead letter waits before it is tried again: an operator may have
// raised the brokers' limit, or made the topic anew.
const parkFor = time.Minute
