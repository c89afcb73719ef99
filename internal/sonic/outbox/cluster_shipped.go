package outbox

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/backoff"
)

// shippedSlots holds what is to be reported to primaries: up to which entry the topic has the stream
// of each slot. Only the latest entry of a slot counts.
type shippedSlots struct {
	wake chan struct{}

	mu  sync.Mutex
	ids map[int]wire.ID
}

func newShippedSlots() *shippedSlots {
	return &shippedSlots{wake: make(chan struct{}, 1), ids: map[int]wire.ID{}}
}

func (s *shippedSlots) add(ids map[int]wire.ID) {
	s.mu.Lock()
	for slot, id := range ids {
		s.ids[slot] = wire.Max(s.ids[slot], id)
	}
	s.mu.Unlock()
	signal(s.wake)
}

func (s *shippedSlots) take() map[int]wire.ID {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := s.ids
	s.ids = map[int]wire.ID{}
	return ids
}

const (
	// shippedAtOnce is how many slots one request reports: Redis does nothing else meanwhile.
	shippedAtOnce = 256
	// shippedPause is the pause after a report has failed.
	shippedPause = 50 * time.Millisecond
)

// reportShipped reports to the primaries what is stored, concurrently with the storing. If a primary
// is down or a slot has moved, reportShipped reports again by the latest map.
func (o *clusterOwner) reportShipped(ctx context.Context) error {
	for {
		select {
		case <-o.shipped.wake:
		case <-ctx.Done():
			return nil
		}
		left := o.reportOnce(ctx)
		if len(left) == 0 {
			continue
		}
		o.cluster.Refresh()
		if !backoff.Sleep(ctx, shippedPause) {
			return nil
		}
		o.shipped.add(left)
	}
}

// reportOnce returns what it could not report. The reader of a primary logs why that is not reachable.
func (o *clusterOwner) reportOnce(ctx context.Context) (left map[int]wire.ID) {
	m := o.cluster.Map()
	byAddress := map[string]map[int]wire.ID{}
	for slot, id := range o.shipped.take() {
		address := m.Owner(slot)
		if byAddress[address] == nil {
			byAddress[address] = map[int]wire.ID{}
		}
		byAddress[address][slot] = id
	}
	left = map[int]wire.ID{}
	maps.Copy(left, byAddress[""])
	delete(byAddress, "")
	var reporting sync.WaitGroup
	var mu sync.Mutex
	for address, ids := range byAddress {
		reporting.Go(func() {
			failed, _ := reportSlots(ctx, o.cluster.At(address), ids)
			mu.Lock()
			maps.Copy(left, failed)
			mu.Unlock()
		})
	}
	reporting.Wait()
	return left
}

// reportSlots reports to a primary up to which entry the topic has slots. It returns those that it
// could not report.
func reportSlots(ctx context.Context, db script.Doer, ids map[int]wire.ID) (left map[int]wire.ID, err error) {
	left = map[int]wire.ID{}
	for slots := range slices.Chunk(slices.Collect(maps.Keys(ids)), shippedAtOnce) {
		some := map[int]wire.ID{}
		for _, slot := range slots {
			some[slot] = ids[slot]
		}
		missing, failed := redislib.ShippedSlots(ctx, db, some)
		if failed != nil {
			missing, err = slots, failed
		}
		for _, slot := range missing {
			left[slot] = ids[slot]
		}
	}
	return left, err
}
