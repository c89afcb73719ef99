package outbox

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

// followEvery is how often this process asks how far another one has shipped. A reply that waits for it is late by as much.
const followEvery = 2 * time.Millisecond

// Follow tells how far the topic is while another process ships, until ctx ends.
func (s *Shipper) Follow(ctx context.Context) error {
	var told message.ID
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
		if s.Status().Owner {
			continue
		}
		// Who ships says what is the matter when Redis cannot be asked.
		if id, err := s.lane.ShippedTo(ctx); err == nil && id.Compare(told) > 0 {
			told = id
			s.stored(id)
		}
	}
}
