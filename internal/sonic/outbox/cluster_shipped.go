package outbox

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/redislib"
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

func (s *shippedSlots) add(groups []wire.Group) {
	s.mu.Lock()
	for i := range groups {
		s.ids[groups[i].Slot] = wire.Max(s.ids[groups[i].Slot], groups[i].Last)
	}
	s.mu.Unlock()
	signal(s.wake)
}

// putBack adds ids again that could not be reported.
func (s *shippedSlots) putBack(ids map[int]wire.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for slot, id := range ids {
		s.ids[slot] = wire.Max(s.ids[slot], id)
	}
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
		if o.reportOnce(ctx) {
			continue
		}
		o.cluster.Refresh()
		if !backoff.Sleep(ctx, shippedPause) {
			return nil
		}
		signal(o.shipped.wake)
	}
}

// reportOnce returns whether all primaries have got their reports.
func (o *clusterOwner) reportOnce(ctx context.Context) bool {
	m := o.cluster.Map()
	batches := map[string]map[int]wire.ID{} // by address
	for slot, id := range o.shipped.take() {
		address := m.Owner(slot)
		if batches[address] == nil {
			batches[address] = map[int]wire.ID{}
		}
		batches[address][slot] = id
	}
	var reporting sync.WaitGroup
	var mu sync.Mutex
	all := true
	for address, ids := range batches {
		reporting.Go(func() {
			if left := o.reportTo(ctx, address, ids); len(left) > 0 {
				o.shipped.putBack(left)
				mu.Lock()
				all = false
				mu.Unlock()
			}
		})
	}
	reporting.Wait()
	return all
}

// reportTo returns the ids that the primary has not got. Its reader logs why it is not reachable.
func (o *clusterOwner) reportTo(ctx context.Context, address string, ids map[int]wire.ID) (left map[int]wire.ID) {
	if address == "" {
		return ids
	}
	db := o.cluster.At(address)
	left = map[int]wire.ID{}
	batch := map[int]wire.ID{}
	report := func() {
		missing, err := redislib.ShippedSlots(ctx, db, batch)
		if err != nil {
			for slot, id := range batch {
				left[slot] = id
			}
		}
		for _, slot := range missing {
			left[slot] = batch[slot]
		}
		clear(batch)
	}
	for slot, id := range ids {
		if batch[slot] = id; len(batch) == shippedAtOnce {
			report()
		}
	}
	if len(batch) > 0 {
		report()
	}
	return left
}
