package topicname

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPartitionNames(t *testing.T) {
	for name, want := range map[string]struct {
		topic string
		index int
		ok    bool
	}{
		"persistent://a/b/c":                           {"persistent://a/b/c", 0, false},
		"persistent://a/b/c-partition-0":               {"persistent://a/b/c", 0, true},
		"persistent://a/b/c-partition-12":              {"persistent://a/b/c", 12, true},
		"persistent://a/b/c-partition-1-partition-007": {"persistent://a/b/c-partition-1", 7, true},
		"c-partition-":                                 {"c-partition-", 0, false},
		"c-partition-x":                                {"c-partition-x", 0, false},
		"c-partition--1":                               {"c-partition--1", 0, false},
		"c-partition-2147483648":                       {"c-partition-2147483648", 0, false},
	} {
		topic, index, ok := SplitPartition(name)
		require.Equal(t, want.topic, topic, name)
		require.Equal(t, want.index, index, name)
		require.Equal(t, want.ok, ok, name)
		require.Equal(t, want.topic, WithoutPartition(name), name)
	}
	require.Equal(t, "a-partition-3", Partition("a", 3))
}
