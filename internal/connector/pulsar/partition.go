package pulsar

import (
	"context"
	"sort"
	"sync"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/ring"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// partition acknowledges the deliveries of one pipeline. The pipeline's positions count the
// messages that were offered to it.
type partition struct {
	ordered  bool // its messages come in the order of their ids
	pipeline *pipeline.Pipeline

	mu          sync.Mutex
	waiting     ring.Ring[waitingDelivery] // the deliveries at the positions from watermark+1 on
	watermark   int64                      // every delivery up to this position is acknowledged
	last        messaging.MessageID        // the latest id offered
	ascendsFrom int64                      // the position of the last redelivery: ids ascend from there on
}

type waitingDelivery struct {
	pending messaging.PendingDelivery
	id      messaging.MessageID
}

// offer offers m to the pipeline, unless the pipeline has it already. The broker delivers a message
// again after a session ended; then offer only replaces its delivery.
func (p *partition) offer(ctx context.Context, m *message.Message, id messaging.MessageID, pending messaging.PendingDelivery) {
	p.mu.Lock()
	if p.ordered && p.replaceDelivery(id, pending) {
		p.mu.Unlock()
		return
	}
	p.waiting.Push(waitingDelivery{pending, id})
	position := p.watermark + int64(p.waiting.Len())
	if p.ordered {
		if id.Compare(p.last) <= 0 {
			p.ascendsFrom = position
		}
		p.last = id
	}
	p.mu.Unlock()
	if err := p.pipeline.Offer(ctx, m, position); err != nil {
		// The pipeline did not take m, because the source stops. So no later delivery is waiting.
		p.mu.Lock()
		if p.waiting.Len() > 0 {
			p.waiting.DropLast()
		}
		p.mu.Unlock()
		pending.Complete(errStopping)
	}
}

// replaceDelivery replaces the delivery of a waiting message by the new one, and reports whether the
// message is waiting. It ignores deliveries before ascendsFrom: this one must follow what the broker
// has delivered again since. p.mu is held.
func (p *partition) replaceDelivery(id messaging.MessageID, pending messaging.PendingDelivery) bool {
	if p.last.IsZero() || id.Compare(p.last) > 0 {
		return false
	}
	first := int(max(p.ascendsFrom-p.watermark-1, 0))
	i := first + sort.Search(p.waiting.Len()-first, func(i int) bool { return p.waiting.At(first+i).id.Compare(id) >= 0 })
	if i >= p.waiting.Len() || p.waiting.At(i).id.Compare(id) != 0 {
		return false // the acknowledgement was lost, or the subscription was reset
	}
	p.waiting.At(i).pending = pending
	return true
}

// commit acknowledges all deliveries up to position.
func (p *partition) commit(position int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := min(int(position-p.watermark), p.waiting.Len())
	for range max(n, 0) {
		p.waiting.Pop().pending.Complete(nil)
	}
	p.watermark = max(p.watermark, position)
	return nil
}

// failWaiting completes the waiting deliveries with errStopping: the broker delivers them again.
func (p *partition) failWaiting() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.waiting.Len() {
		p.waiting.At(i).pending.Complete(errStopping)
	}
	p.waiting.Clear()
}
