package kafka

import (
	"context"
	"errors"

	"github.com/IBM/sarama"
)

// Lag returns how many messages follow the committed offsets in the partitions that this process
// has now. The sum over all members is the group's lag. Lag asks the brokers. Transaction markers
// at the end of a partition count for up to a second. It is safe for concurrent use.
func (s *Source) Lag(ctx context.Context) (int64, error) {
	s.mu.Lock()
	client := s.client
	claims := make([]*claimedPartition, 0, len(s.claims))
	for c := range s.claims {
		claims = append(claims, c)
	}
	s.mu.Unlock()
	if client == nil {
		return 0, s.cfg.withBrokers(errors.New("not connected"))
	}
	var lag int64
	for _, c := range claims {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		newest, err := client.GetOffset(c.topic, c.partition, sarama.OffsetNewest)
		if err != nil {
			return 0, s.cfg.withBrokers(err)
		}
		lag += max(0, newest-c.nextOffset.Load())
	}
	return lag, nil
}
