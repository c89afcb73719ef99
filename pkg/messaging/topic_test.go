package messaging_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestTopicNames(t *testing.T) {
	for _, name := range []string{"orders", "a/b/c", "persistent://a/b/c", "non-persistent://a/b/c", "a/b/c-partition-3", "a/b/ü%20.~"} {
		require.True(t, messaging.ValidTopic(name), name)
	}
	for _, name := range []string{"", "a/b", "http://a/b/c", "persistent://a/b/", "a b", "a?b", "a#b", "a\tb", "a\nb", "a\x00b", "a\u2028b", "a\xffb"} {
		require.False(t, messaging.ValidTopic(name), "%q", name)
	}
}
