package consume

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConsumerConfigDerivesTopics(t *testing.T) {
	c := DefaultConsumerConfig()
	c.Topics, c.Subscription = []string{"orders"}, "billing"
	require.NoError(t, c.Validate())
	d := c.derived()
	require.Equal(t, "persistent://public/default/orders-billing-RETRY", d.Retry.Topic)
	require.Equal(t, "persistent://public/default/orders-billing-DLQ", d.Retry.DeadLetterTopic)
	require.Equal(t, "billing", d.Retry.DeadLetterSubscription)
	require.Equal(t, OrderNone, d.Order)
	require.Equal(t, 16, d.Concurrency)
	require.True(t, d.usesRetryTopic())

	c.Type, c.Order = KeyShared, OrderNone
	require.True(t, c.derived().usesRetryTopic())
	for _, owned := range []SubscriptionType{Exclusive, Failover} {
		c.Type = owned
		require.False(t, c.derived().usesRetryTopic(), "who waits for its turn must not get retries")
	}
	c.Order = ""
	c.Type = Failover
	require.Equal(t, OrderKey, c.derived().Order)
	require.False(t, c.derived().usesRetryTopic())
	c.Order = OrderTotal
	require.Equal(t, 1, c.derived().Concurrency)
}

func TestConsumerConfigFaults(t *testing.T) {
	valid := DefaultConsumerConfig()
	valid.Topics, valid.Subscription = []string{"orders"}, "billing"
	for want, change := range map[string]func(*ConsumerConfig){
		"topics: either":                    func(c *ConsumerConfig) { c.Pattern = "x.*" },
		"topics: either topics":             func(c *ConsumerConfig) { c.Topics = nil },
		"topics[0]: must be a name":         func(c *ConsumerConfig) { c.Topics[0] = "a/b" },
		"topics[1]: must not be the retry":  func(c *ConsumerConfig) { c.Topics, c.Retry.Topic = []string{"a", "r"}, "r" },
		"retry.topic: must be set":          func(c *ConsumerConfig) { c.Topics = []string{"a", "b"} },
		"retry.dead_letter_topic: must be":  func(c *ConsumerConfig) { c.Topics, c.Retry.InPlace = []string{"a", "b"}, true },
		"pattern: must not match retry.top": func(c *ConsumerConfig) { c.Topics, c.Pattern, c.Retry.Topic = nil, "a.*", "a-retry" },
		"pattern: must be a regular":        func(c *ConsumerConfig) { c.Topics, c.Pattern = nil, "a(" },
		"subscription: must be set":         func(c *ConsumerConfig) { c.Subscription = "" },
		"type: must be one of":              func(c *ConsumerConfig) { c.Type = "some" },
		"start_at: must be":                 func(c *ConsumerConfig) { c.StartAt = "" },
		"order: key needs":                  func(c *ConsumerConfig) { c.Order = OrderKey },
		"order: total needs":                func(c *ConsumerConfig) { c.Order = OrderTotal },
		"concurrency: must be 1":            func(c *ConsumerConfig) { c.Type, c.Order, c.Concurrency = Exclusive, OrderTotal, 2 },
		"concurrency: must be > 0":          func(c *ConsumerConfig) { c.Concurrency = -1 },
		"read_compacted: needs":             func(c *ConsumerConfig) { c.ReadCompacted = true },
		"prefetch_messages: must be > 0":    func(c *ConsumerConfig) { c.PrefetchMessages = 0 },
		"prefetch_bytes: must be > 0":       func(c *ConsumerConfig) { c.PrefetchBytes = 0 },
		"max_message_bytes: must be > 0":    func(c *ConsumerConfig) { c.MaxMessageBytes = -1 },
		"retry.max_attempts: must be >= 0":  func(c *ConsumerConfig) { c.Retry.MaxAttempts = -1 },
		"retry.topic: must be persistent":   func(c *ConsumerConfig) { c.Retry.Topic = "non-persistent://a/b/c" },
		"retry.dead_letter_topic: must be persistent": func(c *ConsumerConfig) {
			c.Retry.DeadLetterTopic = "non-persistent://a/b/c"
		},
		"topics[0]: must be persistent": func(c *ConsumerConfig) { c.Topics[0] = "non-persistent://a/b/c" },
		"must be a regular expression for persistent": func(c *ConsumerConfig) {
			c.Topics, c.Pattern, c.Retry.InPlace, c.Retry.DeadLetterTopic = nil, "non-persistent://a/b/c.*", true, "dead"
		},
		"retry.max_delay: must be at least": func(c *ConsumerConfig) { c.Retry.MaxDelay = 0 },
		"stuck_after: must be > 0":          func(c *ConsumerConfig) { c.StuckAfter = 0 },
		"ack_messages: must be > 0":         func(c *ConsumerConfig) { c.AckMessages = 0 },
	} {
		c := valid
		c.Topics = append([]string(nil), valid.Topics...)
		change(&c)
		require.ErrorContains(t, c.Validate(), want)
	}
	err := ConsumerConfig{}.Validate()
	require.ErrorContains(t, err, "topics:")
	require.ErrorContains(t, err, "drain_idle:", "all at once")
}
