package processor

import (
	"context"
	"sync"
	"time"

	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// gatherer makes batches of events that come within the linger, and delivers up to the subscriber's concurrency of
// them at once. Each event has its own verdict.
type gatherer struct {
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

func newGatherer(stop context.Context, w *worker) *gatherer {
	g := &gatherer{w: w, stop: stop, items: make(chan pendingItem), slots: make(chan struct{}, w.concurrency()), ended: make(chan struct{})}
	g.wg.Go(g.run)
	return g
}

// end waits until all that was taken has its verdict. Nothing is taken any more.
func (g *gatherer) end() {
	close(g.ended)
	g.wg.Wait()
}

// take is the consumer's handler.
func (g *gatherer) take(_ context.Context, d *messaging.Delivery, p messaging.PendingDelivery) {
	it, err := g.w.prepare(d)
	if err != nil {
		p.Complete(g.w.refuse(d, it.delivery.Event, err))
		return
	}
	select {
	case g.items <- pendingItem{it, p}:
	case <-g.stop.Done():
		p.Complete(errStopping)
	}
}

func (g *gatherer) run() {
	most, linger := g.w.batchEvents(), g.w.batchLinger()
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

// send waits for a place, the breaker and the rate, and has the batch delivered.
func (g *gatherer) send(batch []pendingItem) {
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
	if g.w.breaker.enter(ctx) != nil {
		stopped()
		return
	}
	if g.w.limit.WaitN(ctx, len(batch)) != nil {
		g.w.breaker.leave(noVerdict)
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
		for i, r := range g.w.deliver(delivering, items) {
			// Gone waits for the worker's end: the others of the batch have their verdicts first.
			if it := batch[i]; r.Verdict == target.Gone {
				g.wg.Go(func() { it.pending.Complete(g.w.verdict(ctx, it.item, r, len(batch))) })
			} else {
				it.pending.Complete(g.w.verdict(ctx, it.item, r, len(batch)))
			}
		}
	})
}
