package engine

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/health"
)

// sendQueues are the send queues for the subscribers of a bus: those of subscribers that are not
// ordered, or, for one partition, those of ordered ones. It is safe for concurrent use.
type sendQueues struct {
	bus       *bus
	ctx       context.Context // the life of the queues
	partition int             // of ordered subscribers' send topics
	working   sync.WaitGroup  // of the queues' goroutines

	mu    sync.Mutex
	byUID map[string]*sendQueue
}

func newSendQueues(ctx context.Context, b *bus, partition int) *sendQueues {
	return &sendQueues{bus: b, ctx: ctx, partition: partition, byUID: make(map[string]*sendQueue)}
}

// of returns the send queue of a subscriber, and makes it if there is none. It returns nil if the
// subscriber does not exist any more: a send queue would create the subscriber's topics again. The
// queue takes names from the first revision of its subscriber, because they never change.
func (qs *sendQueues) of(s *model.Subscriber) *sendQueue {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	b, q := qs.bus, qs.byUID[s.UID]
	if q != nil || !(*b.exists.Load())[s.UID] {
		return q
	}
	ctx, end := context.WithCancel(qs.ctx)
	q = &sendQueue{
		maxBytes: b.engine.cfg.QueueBytes, openSlots: b.engine.openSlots, retrySlots: b.engine.retrySlots,
		health:  health.New(b.log.With(zap.String("subscriber", s.Name), zap.Int("partition", qs.partition))),
		open:    func(ctx context.Context) (topicWriter, error) { return b.openSendTopic(ctx, s, qs.partition) },
		metrics: b.metrics, ctx: ctx, end: end, working: &qs.working, wake: make(chan struct{}, 1),
	}
	qs.byUID[s.UID] = q
	return q
}

// forget ends the queues of subscribers that do not exist any more.
func (qs *sendQueues) forget(exists map[string]bool) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	for uid, q := range qs.byUID {
		if !exists[uid] {
			q.forget()
			delete(qs.byUID, uid)
		}
	}
}
