package kafka

import (
	"context"
	"errors"

	"github.com/IBM/sarama"
)

// Lag returns how many messages wait behind what was committed in the partitions that this process has at present: those of all members together
// are the group's. It asks the brokers. In topics with transactions their markers count as messages. It is safe for concurrent use.
func (s *Source) Lag(ctx context.Context) (int64, error) {
	s.mu.Lock()
	client := s.client
	claims := make([]*claimed, 0, len(s.claims))
	for c := range s.claims {
		claims = append(claims, c)
	}
	s.mu.Unlock()
	if client == nil {
		return 0, s.cfg.trouble(errors.New("not connected"))
	}
	var lag int64
	for _, c := range claims {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		newest, err := client.GetOffset(c.topic, c.partition, sarama.OffsetNewest)
		if err != nil {
			return 0, s.cfg.trouble(err)
		}
		lag += max(0, newest-c.next.Load())
	}
	return lag, nil
}
