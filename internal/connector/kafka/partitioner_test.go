package kafka

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/twmb/franz-go/pkg/kgo"
)

// The hashes are those that Kafka's own tests of its Java client expect.
func TestPartitionsAreJavas(t *testing.T) {
	p := DefaultSinkConfig().partitioner().ForTopic("t")
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		for _, partitions := range []int{1, 3, 50, math.MaxInt32} {
			got := p.Partition(&kgo.Record{Key: []byte(key)}, partitions)
			assert.Equal(t, int(hash&math.MaxInt32)%partitions, got, "%s of %d", key, partitions)
		}
	}
}
