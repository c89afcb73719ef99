package messaging

import "time"

// Retry says what happens to a message whose handler returned an error.
//
// On a durable shared subscription with order none, a copy is published to the
// retry topic for delivery after the delay, and the original is acknowledged once
// the brokers have stored the copy: attempts survive a restart. In every other
// case the message is held in this process, because a copy would lose its place in
// the order, and a restart begins with attempt 1 again.
type Retry struct {
	// MaxAttempts is how often a message is handled before it goes to the
	// dead-letter topic. 0: for ever. Default 16.
	MaxAttempts int `yaml:"max_attempts"`
	// MinDelay and MaxDelay bound the delay before another attempt, which doubles
	// from one attempt to the next and is spread by up to 20 %. An error made by
	// RetryAfter names its own delay. Defaults 1s and 1m.
	MinDelay time.Duration `yaml:"min_delay"`
	MaxDelay time.Duration `yaml:"max_delay"`
	// InPlace holds messages in this process on every kind of subscription, and
	// uses no retry topic. Default false.
	InPlace bool `yaml:"in_place"`
	// Topic for copies that wait for another attempt. Default: the only topic's
	// name with -<subscription>-RETRY. Must be set with several topics or a pattern.
	Topic string `yaml:"topic"`
	// DeadLetterTopic for messages that were rejected or have used up their
	// attempts. Default: the only topic's name with -<subscription>-DLQ. Must be
	// set with several topics or a pattern.
	DeadLetterTopic string `yaml:"dead_letter_topic"`
	// DeadLetterSubscription is created on the dead-letter topic before the first
	// message goes there: brokers delete at once what no subscription waits for.
	// Default: Subscription. "-" creates none.
	DeadLetterSubscription string `yaml:"dead_letter_subscription"`
}

// usesRetryTopic reports whether failed messages wait on a topic rather than in
// this process.
func (c ConsumerConfig) usesRetryTopic() bool {
	return c.Type == Shared && c.Order == OrderNone && c.Durable && !c.Retry.InPlace
}
