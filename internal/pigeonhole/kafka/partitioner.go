package kafka

import (
	"math/rand/v2"

	"github.com/IBM/sarama"
)

// partitioner chooses as Kafka's Java client does: by the key's murmur2 hash where there is a key. Messages without one stay on a partition for a
// batch's worth, so that batches get full, and then go on to another. The library calls it from one goroutine for each topic.
type partitioner struct {
	hash    sarama.Partitioner
	current int32
	left    int // bytes until the partition is changed
}

// stickyBytes is Java's batch.size of that many bytes, four times over: a link with compression takes more at a time.
const stickyBytes = 64 << 10

func newPartitioner(topic string) sarama.Partitioner {
	return &partitioner{hash: sarama.NewMurmur2Partitioner(topic)}
}

// Partition returns the partition of a message.
func (p *partitioner) Partition(m *sarama.ProducerMessage, partitions int32) (int32, error) {
	if m.Key != nil {
		return p.hash.Partition(m, partitions)
	}
	if p.left <= 0 || p.current >= partitions {
		p.current, p.left = rand.Int32N(partitions), stickyBytes
	}
	p.left -= perMessage
	if m.Value != nil {
		p.left -= m.Value.Length()
	}
	return p.current, nil
}

// RequiresConsistency and MessageRequiresConsistency let messages without a key avoid partitions that have no leader.
func (p *partitioner) RequiresConsistency() bool { return true }

// MessageRequiresConsistency reports whether the message has a key.
func (p *partitioner) MessageRequiresConsistency(m *sarama.ProducerMessage) bool { return m.Key != nil }
