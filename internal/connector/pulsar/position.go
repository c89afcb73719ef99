package pulsar

import (
	"context"
	"sort"
	"sync"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// partition turns a lane's positions, which are a count of the messages offered to it,
// into verdicts on the deliveries that brought them.
type partition struct {
	at      place
	ordered bool // its messages come in the order of their ids
	lane    *lane.Lane

	mu sync.Mutex
	// waiting[first:] are the deliveries at the positions from low+1 on.
	waiting []waiting
	first   int
	low     int64               // everything up to this position has its verdict
	last    messaging.MessageID // the latest id offered
	begun   int64               // the position at which the broker last went back: ids ascend from there on
}

type waiting struct {
	u  messaging.PendingDelivery
	id messaging.MessageID
}

// take offers m to the lane, unless it is there already: delivered again because a
// session ended. Then only its delivery is the new one.
func (p *partition) take(ctx context.Context, m *message.Message, id messaging.MessageID, u messaging.PendingDelivery) {
	p.mu.Lock()
	if p.ordered && p.again(id, u) {
		p.mu.Unlock()
		return
	}
	p.push(waiting{u, id})
	position := p.low + int64(len(p.waiting)-p.first)
	if p.ordered {
		if id.Compare(p.last) <= 0 {
			p.begun = position
		}
		p.last = id
	}
	p.mu.Unlock()
	if err := p.lane.Offer(ctx, m, position); err != nil {
		// Not taken, because we stop: nothing can be behind it.
		p.mu.Lock()
		if n := len(p.waiting); n > p.first {
			p.waiting[n-1] = waiting{}
			p.waiting = p.waiting[:n-1]
		}
		p.mu.Unlock()
		u.Complete(errStopping)
	}
}

// again gives a delivery that waits the new verdict to complete, and reports whether there is one.
// One that the lane took before the broker went back further does not count: what is in front of it
// has been passed on again since, and it must follow. p.mu is held.
func (p *partition) again(id messaging.MessageID, u messaging.PendingDelivery) bool {
	if p.last.IsZero() || id.Compare(p.last) > 0 {
		return false
	}
	all := p.waiting[p.first+int(max(p.begun-p.low-1, 0)):]
	i := sort.Search(len(all), func(i int) bool { return all[i].id.Compare(id) >= 0 })
	if i == len(all) || all[i].id.Compare(id) != 0 {
		return false // passed on already, but its acknowledgement was lost; or the subscription was set back
	}
	all[i].u = u
	return true
}

// push appends w. p.mu is held.
func (p *partition) push(w waiting) {
	if p.first > 0 && len(p.waiting) == cap(p.waiting) {
		n := copy(p.waiting, p.waiting[p.first:])
		clear(p.waiting[n:])
		p.waiting, p.first = p.waiting[:n], 0
	}
	p.waiting = append(p.waiting, w)
}

// commit acknowledges all deliveries up to position.
func (p *partition) commit(position int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(int(position-p.low), len(p.waiting)-p.first)
	for i := range max(n, 0) {
		p.waiting[p.first+i].u.Complete(nil)
		p.waiting[p.first+i] = waiting{}
	}
	p.first += max(n, 0)
	p.low = max(p.low, position)
	if p.first == len(p.waiting) {
		p.waiting, p.first = p.waiting[:0], 0
	}
	return nil
}

// leave gives up what waits: it is delivered again.
func (p *partition) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, w := range p.waiting[p.first:] {
		w.u.Complete(errStopping)
	}
	p.waiting, p.first = nil, 0
}
