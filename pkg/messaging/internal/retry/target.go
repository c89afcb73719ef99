package retry

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Copier holds the topics that a run copies messages to.
type Copier struct {
	Retry *CopyTarget // nil: messages are held in place
	Dead  *CopyTarget
}

// CopyTarget is a topic that copies go to. Its publisher is opened when first needed, in the
// background: a topic that cannot be opened must not occupy a worker.
type CopyTarget struct {
	publishers   *publish.Publishers
	Topic        string
	Retry        bool
	subscription string // whose consumer copies
	keepFor      string // subscription to create on a dead-letter topic, "" for none
	profile      publish.Profile
	log          *zap.Logger

	until      func() context.Context // ends when opening makes no more sense
	subscribed chan struct{}          // closed once the retry topic has its subscription

	opened sync.WaitGroup // goroutines that open or close a publisher

	mu        sync.Mutex
	open      *publish.Publisher
	opening   bool
	closed    bool
	unhealthy error // why there is no publisher, nil while that is not known
	waited    int
}

// ErrNotKept says that no subscription keeps the topic's messages.
var ErrNotKept = errors.New("no subscription")

// CopierConfig configures the copies of a run.
type CopierConfig struct {
	Publishers   *publish.Publishers
	Log          *zap.Logger
	Retry        Retry
	Subscription string // whose consumer copies
	RetryTopic   bool   // messages wait for another attempt on a topic
	PendingBytes int64  // of copies to a topic that are not stored yet, at most

	Until func() context.Context // ends when opening makes no more sense
}

// NewCopier makes the targets, whose publishers are opened when first needed.
func NewCopier(cfg CopierConfig) *Copier {
	target := func(name, topic string) *CopyTarget {
		p := publish.Business()
		p.Name, p.Compression = name, cfg.Retry.Compression
		// Unbatched: copies with a delivery time travel alone anyway, and
		// Key_Shared readers of dead letters need it. A full queue must not block
		// a worker.
		p.BatchRecords, p.Admission, p.GroupCommit = 1, publish.FailFast, false
		p.MaxPendingRecords, p.MaxPendingBytes = 1000, cfg.PendingBytes
		return &CopyTarget{
			publishers: cfg.Publishers, Topic: record.FullTopicName(topic), subscription: cfg.Subscription,
			profile: p, log: cfg.Log, until: cfg.Until, subscribed: make(chan struct{}),
		}
	}
	all := &Copier{Dead: target("dead_letter", cfg.Retry.DeadLetterTopic)}
	if cfg.Retry.DeadLetterSubscription != noSubscription {
		all.Dead.keepFor = cfg.Retry.DeadLetterSubscription
	}
	if cfg.RetryTopic {
		all.Retry = target("retry", cfg.Retry.Topic)
		all.Retry.Retry = true
	}
	return all
}

// Note takes the result of subscribing to the retry topic. That subscription is durable: it keeps
// copies from then on, also while the run is not connected to it.
func (c *Copier) Note(err error) {
	t := c.Retry
	if t == nil || t.isSubscribed() {
		return
	}
	if err == nil {
		close(t.subscribed) // one receiver per source notes
		return
	}
	t.fail(fmt.Errorf("%w: %w", ErrNotKept, err))
}

// isSubscribed reports whether the run has subscribed to its retry topic.
func (t *CopyTarget) isSubscribed() bool {
	select {
	case <-t.subscribed:
		return true
	default:
		return false
	}
}

// Publisher returns the target's publisher. Without one it returns why, or nil while it is being
// opened for the first time.
func (t *CopyTarget) Publisher() (*publish.Publisher, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil && !t.opening && !t.closed {
		t.opening = true
		t.opened.Go(t.prepare)
	}
	return t.open, t.unhealthy
}

// OpenTimeout is how long to wait for a publisher that is being opened.
func (t *CopyTarget) OpenTimeout() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waited = min(t.waited+1, 100)
	return time.Duration(t.waited) * 5 * time.Millisecond
}

// prepare opens the publisher, trying until the run stops.
func (t *CopyTarget) prepare() {
	ctx := t.until()
	var pause backoff.Backoff
	for first := true; ctx.Err() == nil; first = false {
		err := t.awaitSubscription(ctx)
		var p *publish.Publisher
		if err == nil {
			p, err = t.publishers.TryOpen(ctx, t.Topic, t.profile)
		}
		if ctx.Err() != nil && err != nil {
			break
		}
		if first && err != nil {
			t.log.Error("cannot open a topic for copies, will keep trying: messages to be copied there are not acknowledged",
				zap.String("to", t.Topic), zap.Error(err))
		}
		if err == nil {
			t.mu.Lock()
			t.open, t.unhealthy, t.opening, t.waited = p, nil, false, 0
			t.mu.Unlock()
			return
		}
		t.fail(err)
		wait := pause.Next()
		if errors.Is(err, record.ErrTopicTerminated) {
			wait = ParkFor // only an operator can change that
		}
		backoff.Sleep(ctx, wait)
	}
	t.mu.Lock()
	t.opening = false
	t.mu.Unlock()
}

func (t *CopyTarget) fail(err error) {
	t.mu.Lock()
	t.unhealthy = err
	t.mu.Unlock()
}

// Discard closes a publisher that takes no record any more. The next copy opens another.
func (t *CopyTarget) Discard(p *publish.Publisher) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p == nil || t.open != p || t.closed {
		return
	}
	t.open = nil
	t.opened.Go(func() { _ = p.Close(clientquirks.Canceled()) }) // every record on it gets its outcome
}

// awaitSubscription returns nil once a subscription keeps published messages. That of the retry
// topic is the run's own; it logs when it cannot subscribe.
func (t *CopyTarget) awaitSubscription(ctx context.Context) error {
	if t.Retry {
		select {
		case <-t.subscribed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if t.keepFor == "" {
		return nil
	}
	// The subscription is left without a consumer.
	if err := t.publishers.CreateSubscription(ctx, t.Topic, t.keepFor, pulsar.SubscriptionPositionEarliest); err != nil {
		return fmt.Errorf("%w %s: %w", ErrNotKept, t.keepFor, err)
	}
	return nil
}

// Close closes the publishers. No copy is under way any more, or ctx has ended.
func (c *Copier) Close(ctx context.Context) {
	for _, t := range []*CopyTarget{c.Retry, c.Dead} {
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
		if err := p.Close(ctx); err != nil && !errors.Is(err, record.ErrUnacknowledged) {
			t.log.Warn("cannot close topic for copies", zap.String("to", t.Topic), zap.Error(err))
		}
	}
}

// ParkFor is how long a parked dead letter waits before it is tried again: an operator may have
// raised the brokers' limit, or made the topic anew.
const ParkFor = time.Minute
