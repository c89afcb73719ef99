package outbox

import (
	"context"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// followEvery is how often this process asks how far another one has shipped. It delays replies
// that wait for that by up to the same time.
const followEvery = 2 * time.Millisecond

// Follow reports the last effect in the topic while another process ships, until ctx ends.
func (s *Shipper) Follow(ctx context.Context) error {
	var reported wire.ID
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
		// The process that ships logs errors of Redis.
		if id, err := s.library.ShippedTo(ctx); err == nil && id.Compare(reported) > 0 {
			reported = id
			s.onStored(id)
		}
	}
}
