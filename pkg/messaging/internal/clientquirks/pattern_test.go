package clientquirks_test

import (
	"testing"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

func TestPatternsMatchAsTheClientMatches(t *testing.T) {
	topics := []string{"orders", "orders-eu", "my-orders", "orders-eu-old", "ORDERS"}
	for pattern, want := range map[string][]string{
		"persistent://public/default/orders":          {"orders"},
		"persistent://public/default/orders(-eu)?":    {"orders", "orders-eu"},
		"persistent://public/default/.*orders":        {"orders", "my-orders"},
		"persistent://public/default/orders|ORDERS":   {"orders", "ORDERS"},
		"persistent://public/default/orders-.*|my-.*": {"orders-eu", "orders-eu-old", "my-orders"},
	} {
		t.Run(pattern, func(t *testing.T) {
			s := start(t)
			for _, name := range topics {
				s.CreateTopic(name, 0)
			}
			match, err := clientquirks.PatternMatcher(clientquirks.Anchored(pattern))
			require.NoError(t, err)
			subscribe(t, connect(t, s.URL(), nil), func(o *pulsar.ConsumerOptions) {
				o.Topic, o.TopicsPattern, o.AutoDiscoveryPeriod = "", clientquirks.Anchored(pattern), time.Hour
			})
			var subscribed []string
			for _, name := range topics {
				has := len(s.Consumers(name, "sub")) > 0
				require.Equal(t, has, match("persistent://public/default/"+name), name)
				if has {
					subscribed = append(subscribed, name)
				}
			}
			require.ElementsMatch(t, want, subscribed)
		})
	}
}
