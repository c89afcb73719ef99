package delivery

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// batcher collects the events of one linger time into a batch, and delivers as many batches at once
// as the subscriber's concurrency allows. Each event has its own verdict.
type batcher struct {
	w     *worker
	stop  context.Context
	items chan pendingItem
	slots chan struct{}
	ended chan struct{}
	wg    sync.WaitGroup
}

type pendingItem struct {
	item
	pending messaging.PendingDelivery
}

func newBatcher(stop context.Context, w *worker) *batcher {
	g := &batcher{w: w, stop: stop, items: make(chan pendingItem), slots: make(chan struct{}, w.concurrency()), ended: make(chan struct{})}
	g.wg.Go(g.run)
	return g
}

// end takes no more events, and waits until each event that was taken has its verdict.
func (g *batcher) end() {
	close(g.ended)
	g.wg.Wait()
}

// togetherAttempts is how many attempts an event makes in a batch. After that it is delivered alone,
// and so is its last attempt: another event of its batches may be the reason for their failures.
const togetherAttempts = 4

func (g *batcher) alone(d *messaging.Delivery) bool {
	return d.Attempt > togetherAttempts || d.Attempt > 1 && d.Attempt == g.w.schedule.attempts
}

// take is the consumer's handler.
func (g *batcher) take(_ context.Context, d *messaging.Delivery, p messaging.PendingDelivery) {
	it, err := g.w.prepare(d)
	if err != nil {
		p.Complete(g.w.refuse(d, it.delivery.Event, err))
		return
	}
	if g.alone(d) {
		g.send([]pendingItem{{it, p}})
		return
	}
	select {
	case g.items <- pendingItem{it, p}:
	case <-g.stop.Done():
		p.Complete(errStopping)
	}
}

func (g *batcher) run() {
	most, linger := g.w.batchEvents(), time.Duration(g.w.sub.Target.Webhook.BatchLinger)
	for {
		var batch []pendingItem
		select {
		case it := <-g.items:
			batch = append(batch, it)
		case <-g.ended:
			return
		case <-g.stop.Done():
			return
		}
		timer := time.NewTimer(linger)
		for waiting := true; waiting && len(batch) < most; {
			select {
			case it := <-g.items:
				batch = append(batch, it)
			case <-timer.C:
				waiting = false
			case <-g.stop.Done():
				waiting = false
			}
		}
		timer.Stop()
		g.send(batch)
	}
}

// send waits for a slot, the breaker and the rate limit, and delivers the batch in the background.
func (g *batcher) send(batch []pendingItem) {
	ctx := g.stop
	stopped := func() {
		for _, it := range batch {
			it.pending.Complete(errStopping)
		}
	}
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		stopped()
		return
	}
	entered, err := g.w.admit(ctx, len(batch))
	if err != nil {
		<-g.slots
		stopped()
		return
	}
	g.wg.Go(func() {
		defer func() { <-g.slots }()
		delivering, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(ctx, func() { time.AfterFunc(g.w.p.cfg.StopTimeout, cancel) })()
		items := make([]item, len(batch))
		for i := range batch {
			items[i] = batch[i].item
		}
		// All events have the same delay before the next attempt, so that they are a batch again.
		of := newShared(len(batch))
		for i, r := range g.w.deliver(delivering, items, entered) {
			// The verdict Gone waits for the worker's end: the other events get their verdicts
			// first.
			if it := batch[i]; r.Verdict == target.Gone {
				g.wg.Go(func() { it.pending.Complete(g.w.verdict(ctx, it.item, r, of)) })
			} else {
				it.pending.Complete(g.w.verdict(ctx, it.item, r, of))
			}
		}
	})
}
