package retry

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/publish"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// Retry says what happens to a message whose handler returned an error.
//
// On a durable Shared or Key_Shared subscription with order none, a copy is published to the
// retry topic for delivery after the delay, and the original is acknowledged once the brokers
// have stored the copy: attempts survive a restart, and delays may be hours. Another consumer of
// the subscription may make the next attempt, also with Key_Shared. Nothing is copied before the
// retry topic's subscription exists. While the topic cannot be opened, is terminated, or the copy
// is too large, the message is held in this process.
//
// In every other case the message is held in this process, because a copy would lose its place in
// the order, and a restart begins with attempt 1 again.
//
// A dead letter that is larger than the brokers accept is stored with the beginning of its payload
// and [PropertyTruncated]. One that cannot be stored even so, in a terminated topic for instance,
// is parked: it is held unacknowledged, takes one place of PrefetchMessages, keeps its key or
// partition waiting where there is an order, and is tried again every minute.
type Retry struct {
	// MaxAttempts is how often a message is handled before it goes to the
	// dead-letter topic. 0: without limit. Default 16.
	MaxAttempts int `yaml:"max_attempts"`
	// MinDelay and MaxDelay bound the delay before another attempt, which doubles from one
	// attempt to the next, with a random addition of up to 20 %. An error made by RetryAfter names
	// its own delay, of 30 days at most. Defaults 1s and 1m.
	MinDelay time.Duration `yaml:"min_delay"`
	MaxDelay time.Duration `yaml:"max_delay"`
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
	Compression publish.Compression `yaml:"compression"`
}

// noSubscription as DeadLetterSubscription creates none.
const noSubscription = "-"

// Derived fills in what has a default besides DefaultConsumerConfig's.
func Derived(r Retry, subscription string) Retry {
	r.DeadLetterSubscription = cmp.Or(r.DeadLetterSubscription, subscription)
	r.Compression = cmp.Or(r.Compression, publish.LZ4)
	return r
}

// Validate checks what is not about names of topics.
func Validate(r Retry, retryTopic bool, fault func(string, ...any)) {
	if r.MaxAttempts < 0 {
		fault("retry.max_attempts: must be >= 0, got %d", r.MaxAttempts)
	}
	if r.MaxDelay < r.MinDelay {
		fault("retry.max_delay: must be at least retry.min_delay, got %s", r.MaxDelay)
	}
	cluster.OneOf(fault, "retry.compression", r.Compression, publish.LZ4, publish.ZSTD, publish.NoCompression)
	if retryTopic && record.Keeps(r.Topic) != nil {
		fault("retry.topic: must be persistent, because other topics store nothing, got %q", r.Topic)
	}
	if r.DeadLetterSubscription != noSubscription && record.Keeps(r.DeadLetterTopic) != nil {
		fault(`retry.dead_letter_topic: must be persistent unless retry.dead_letter_subscription is "-", got %q`, r.DeadLetterTopic)
	}
}

// delay is the pause after the given attempt failed.
func (r Retry) delay(attempt int) time.Duration {
	d := r.MinDelay
	for ; attempt > 1 && d < r.MaxDelay && d > 0; attempt-- {
		d = min(2*d, r.MaxDelay)
	}
	return d + backoff.Jitter(d/5)
}

// maxRetryAfter bounds the delay that an error made by RetryAfter names.
const maxRetryAfter = 30 * 24 * time.Hour

// Next returns the delay before another attempt at d, which failed with err. dead is the reason
// when there is none.
func Next(r Retry, d *record.Delivery, err error) (delay time.Duration, dead error) {
	var v *verdict
	named := errors.As(err, &v)
	switch {
	case named && v.reject:
		return 0, err
	case r.MaxAttempts > 0 && d.Attempt >= r.MaxAttempts:
		return 0, fmt.Errorf("gave up after %d attempts: %w", d.Attempt, err)
	case named:
		return max(min(v.after, maxRetryAfter), 0), nil
	default:
		return r.delay(d.Attempt), nil
	}
}
