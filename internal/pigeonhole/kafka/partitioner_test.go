package kafka

import (
	"math"
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The hashes are those that Kafka's own tests of its Java client expect.
func TestPartitionsAreJavas(t *testing.T) {
	p := newPartitioner("t")
	for key, hash := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		for _, partitions := range []int32{1, 3, 50, math.MaxInt32} {
			got, err := p.Partition(&sarama.ProducerMessage{Key: sarama.ByteEncoder(key)}, partitions)
			require.NoError(t, err)
			assert.Equal(t, (hash&math.MaxInt32)%partitions, got, "%s of %d", key, partitions)
		}
	}
}

func TestMessagesWithoutKeyFillBatches(t *testing.T) {
	p := newPartitioner("t")
	changes, last, used := 0, int32(-1), map[int32]bool{}
	const messages = 20_000
	for range messages {
		got, err := p.Partition(&sarama.ProducerMessage{Value: sarama.ByteEncoder(make([]byte, 512))}, 8)
		require.NoError(t, err)
		if got != last {
			changes++
		}
		last, used[got] = got, true
	}
	assert.Len(t, used, 8)
	assert.Less(t, changes, messages/80)
}
