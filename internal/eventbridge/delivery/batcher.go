package delivery

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// batcher makes the attempts of a subscriber without an order in the background, as many at once as
// the subscriber's concurrency allows. In the mode batch it collects the events of one linger time
// for an attempt. Each event has its own verdict.
type batcher struct {
	w     *worker
	stop  context.Context
	slots chan struct{}

	mu    sync.Mutex
	batch []pending
	timer *time.Timer // of batch
}

// pending is a message whose verdict is given later.
type pending struct {
	message *messaging.Delivery
	verdict messaging.PendingDelivery
}

func newBatcher(stop context.Context, w *worker) *batcher {
	return &batcher{w: w, stop: stop, slots: make(chan struct{}, w.concurrency())}
}

// togetherAttempts is how many attempts an event makes in a batch. After that it is delivered alone,
// and so is its last attempt: another event of its batches may be the reason for their failures.
const togetherAttempts = 4

func (b *batcher) alone(d *messaging.Delivery) bool {
	return b.w.batchEvents() == 1 || d.Attempt > togetherAttempts || d.Attempt > 1 && d.Attempt == b.w.sub.Delivery.Retry.MaxAttempts
}

// take is the consumer's handler. The consumer calls it for one message at a time.
func (b *batcher) take(ctx context.Context, d *messaging.Delivery, p messaging.PendingDelivery) {
	one := pending{d, p}
	if b.alone(d) {
		b.start(ctx, func() []pending { return []pending{one} })
		return
	}
	b.mu.Lock()
	b.batch = append(b.batch, one)
	n := len(b.batch)
	if n == 1 {
		b.timer = time.AfterFunc(time.Duration(b.w.sub.Target.Webhook.BatchLinger), func() { b.start(ctx, b.collected) })
	}
	b.mu.Unlock()
	if n == b.w.batchEvents() {
		b.start(ctx, b.collected)
	}
}

// collected returns the batch and begins another one.
func (b *batcher) collected() (batch []pending) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.timer != nil {
		b.timer.Stop()
	}
	batch, b.batch = b.batch, nil
	return batch
}

// start waits for a slot, and makes an attempt at what messages returns then: a batch grows until
// there is a slot.
func (b *batcher) start(ctx context.Context, messages func() []pending) {
	select {
	case b.slots <- struct{}{}:
	case <-b.stop.Done():
		for _, m := range messages() {
			m.verdict.Complete(errStopping)
		}
		return
	}
	batch := messages()
	go func() {
		defer func() { <-b.slots }()
		all := make([]*messaging.Delivery, len(batch))
		for i, m := range batch {
			all[i] = m.message
		}
		for i, err := range b.w.attempt(b.stop, ctx, all) {
			batch[i].verdict.Complete(err)
		}
	}()
}
