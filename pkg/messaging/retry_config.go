package messaging

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// Retry says what happens to a message whose handler returned an error.
//
// On a durable Shared or Key_Shared subscription with order none, a copy is published to the
// retry topic for delivery after the delay, and the original is acknowledged once the brokers
// have stored the copy: attempts survive a restart, and delays may be hours. The copy waits at the
// brokers and takes no place in this process. Its next attempt may be made by another consumer of
// the subscription, also with Key_Shared. Nothing is copied before the retry topic's subscription
// exists. While the topic cannot be opened, is terminated, or the copy is too large, the message
// is held in this process.
//
// In every other case the message is held in this process, because a copy would lose its place in
// the order, and a restart begins with attempt 1 again.
type Retry struct {
	// MaxAttempts is how often a message is handled before it goes to the
	// dead-letter topic. 0: for ever. Default 16.
	MaxAttempts int `yaml:"max_attempts"`
	// MaxAge is for how long after its first failure a message is handled again: when the next
	// attempt would be later, it goes to the dead-letter topic at once. Where attempts survive a
	// restart, so does the time of the first failure. 0: no limit. Default 0.
	MaxAge time.Duration `yaml:"max_age"`
	// MinDelay and MaxDelay bound the delay before another attempt, which doubles
	// from one attempt to the next and is spread by up to 20 %. An error made by
	// RetryAfter names its own delay. Defaults 1s and 1m.
	MinDelay time.Duration `yaml:"min_delay"`
	MaxDelay time.Duration `yaml:"max_delay"`
	// Delay takes the place of MinDelay and MaxDelay: it is the delay after the given attempt,
	// counted from 1, failed. It is used as it is, without a spread or a bound; less than 0 is 0.
	// It is called from several goroutines at once. Default nil.
	Delay func(attempt int) time.Duration `yaml:"-"`
	// MaxRetryAfter bounds the delay that an error made by RetryAfter names: a longer one is cut to
	// it. Default 24h.
	MaxRetryAfter time.Duration `yaml:"max_retry_after"`
	// InPlace holds messages in this process on every kind of subscription, and
	// uses no retry topic. Default false.
	InPlace bool `yaml:"in_place"`
	// Topic for copies that wait for another attempt. Default: the only topic's
	// name with -<subscription>-RETRY. Must be set with several topics or a pattern.
	//
	// Subscriptions may share a retry topic: each handles its own copies and acknowledges those of
	// others. Consumers of different topics that share one must not have the same subscription
	// name: they would handle one another's.
	Topic string `yaml:"topic"`
	// DeadLetterTopic for messages that were rejected or have used up their
	// attempts. Default: the only topic's name with -<subscription>-DLQ. Must be
	// set with several topics or a pattern.
	DeadLetterTopic string `yaml:"dead_letter_topic"`
	// DeadLetterSubscription is created on the dead-letter topic before the first
	// message goes there: brokers delete at once what no subscription waits for.
	// While it cannot be created, messages are held in this process and not acknowledged.
	// Default: Subscription. "-" creates none, and dead letters are published all the same.
	DeadLetterSubscription string `yaml:"dead_letter_subscription"`
	// Compression of copies to both topics. With LZ4, each topic that copies go to and come from
	// takes about half a megabyte, which counts where a process has hundreds of consumers. Default
	// LZ4.
	Compression Compression `yaml:"compression"`
	// Unstorable is what becomes of a dead letter that can never be stored. Default truncate.
	Unstorable UnstorablePolicy `yaml:"unstorable"`
}

// UnstorablePolicy is what becomes of a dead letter that its topic refuses for good: it is larger
// than the brokers accept even with a short reason and without optional properties, or the
// dead-letter topic is terminated.
type UnstorablePolicy string

const (
	// TruncateUnstorable stores as much of the payload as fits and marks the dead letter with
	// [PropertyTruncated]. The rest is lost, unless the original's topic retains it. What still
	// cannot be stored, for instance in a terminated topic, is parked.
	TruncateUnstorable UnstorablePolicy = "truncate"
	// ParkUnstorable holds the message in this process, unacknowledged, and tries again every
	// minute. It keeps its key, or its partition, from going on where there is an order, and takes
	// one place of PrefetchMessages. Other keys go on.
	ParkUnstorable UnstorablePolicy = "park"
	// DropUnstorable acknowledges the message: it is lost.
	DropUnstorable UnstorablePolicy = "drop"
)

// noSubscription as DeadLetterSubscription creates none.
const noSubscription = "-"

// derived fills in what has a default besides DefaultConsumerConfig's.
func (r Retry) derived(subscription string) Retry {
	if r.DeadLetterSubscription == "" {
		r.DeadLetterSubscription = subscription
	}
	if r.MaxRetryAfter == 0 {
		r.MaxRetryAfter = 24 * time.Hour
	}
	if r.Unstorable == "" {
		r.Unstorable = TruncateUnstorable
	}
	if r.Compression == "" {
		r.Compression = LZ4
	}
	return r
}

// validate checks what is not about names of topics.
func (r Retry) validate(retryTopic bool, fault func(string, ...any)) {
	if r.MaxAttempts < 0 {
		fault("retry.max_attempts: must be >= 0, got %d", r.MaxAttempts)
	}
	if r.MaxDelay < r.MinDelay {
		fault("retry.max_delay: must be at least retry.min_delay, got %s", r.MaxDelay)
	}
	if r.MaxAge < 0 {
		fault("retry.max_age: must be >= 0, got %s", r.MaxAge)
	}
	if r.MaxRetryAfter < 0 {
		fault("retry.max_retry_after: must be >= 0, got %s", r.MaxRetryAfter)
	}
	oneOf(fault, "retry.compression", r.Compression, LZ4, ZSTD, NoCompression)
	oneOf(fault, "retry.unstorable", r.Unstorable, TruncateUnstorable, ParkUnstorable, DropUnstorable)
	if retryTopic && !persistent(r.Topic) {
		fault("retry.topic: must be persistent, others keep nothing, got %q", r.Topic)
	}
	if r.DeadLetterSubscription != noSubscription && !persistent(r.DeadLetterTopic) {
		fault(`retry.dead_letter_topic: must be persistent unless retry.dead_letter_subscription is "-", got %q`, r.DeadLetterTopic)
	}
}

// persistent reports whether a topic keeps what subscriptions wait for.
func persistent(topic string) bool { return !strings.HasPrefix(topic, "non-persistent://") }

// delay is the pause after the given attempt failed.
func (r Retry) delay(attempt int) time.Duration {
	if r.Delay != nil {
		return max(r.Delay(attempt), 0)
	}
	d := r.MinDelay
	for range min(attempt-1, 62) {
		if d >= r.MaxDelay/2 {
			d = r.MaxDelay
			break
		}
		d *= 2
	}
	return d + backoff.Jitter(d/5)
}

// next is the delay before another attempt at d, which failed with err, or the reason why there
// is none.
func (c Retry) next(d *Delivery, err error) (delay time.Duration, dead error) {
	var v *verdict
	named := errors.As(err, &v)
	if named && v.reject {
		return 0, err
	}
	if c.MaxAttempts > 0 && d.Attempt >= c.MaxAttempts {
		return 0, fmt.Errorf("gave up after %d attempts: %w", d.Attempt, err)
	}
	if named {
		delay = max(min(v.after, c.MaxRetryAfter), 0)
	} else {
		delay = c.delay(d.Attempt)
	}
	if age := time.Since(d.FirstFailed); c.MaxAge > 0 && age+delay > c.MaxAge {
		return 0, fmt.Errorf("gave up after %s: %w", age.Round(time.Second), err)
	}
	return delay, nil
}
