package consume

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/budget"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/retry"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/schedule"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/throttle"
)

// worker is a handler goroutine's state.
type worker struct {
	schedule.Worker

	handled int // verdicts nil that are not counted yet
}

// finish notes that d has ended. The scheduler learns of it with the worker's next call.
func (w *worker) finish(d *task) { w.Finish(&d.Item) }

// run is one Run, RunAsync or Drain. This file is the way of a message through it: receiveFrom
// subscribes (session.go) -> receive -> take -> (package schedule) -> work -> call, or hand with
// RunAsync (async.go) -> complete (verdict.go), and from there acknowledged (acks.go), held for
// another attempt, or copied to the retry or dead-letter topic and then acknowledged.
//
// Goroutines: one per source receives and one looks for its new partitions, Concurrency work, one
// is the watchdog, one carries out late verdicts (RunAsync), one watches the backlog (Drain).
// Underneath, the connection's reader goroutine parses and a goroutine per partition feeds the
// session's channel; none of our work, and no acknowledgement, runs on those.
type run struct {
	c       *Consumer
	cfg     ConsumerConfig
	handler Handler
	log     *zap.Logger
	lines   throttle.Throttle // of log lines about single messages
	metrics subscriptionMetrics
	budget  budget.Budget
	sched   *schedule.Scheduler
	workers []*worker
	tasks   taskPool
	copies  *retry.Copier
	drain   *drain // nil in Run

	async       AsyncHandler     // in RunAsync, in place of handler
	completions *completionQueue // the same

	stop       context.Context // ends when nothing more is to be started
	halt       context.CancelCauseFunc
	handlerCtx context.Context // the handlers': ends StopTimeout after stop
	handled    atomic.Int64    // verdict nil

	mu      sync.Mutex
	parts   map[source]int          // partitions of each source, as far as known
	weights map[source]sourceWeight // of its messages, as far as known

	sessions map[*session]struct{}

	created sync.Map // sources whose subscriptions begin where From says

	failed failedAttempts // of messages that a session's end took along
}

// do runs until ctx ends, the client closes, or a subscription can never succeed.
func (r *run) do(ctx context.Context) error {
	r.stop, r.halt = context.WithCancelCause(ctx)
	defer r.halt(nil)
	grace, cancelHandlers := context.WithCancel(context.WithoutCancel(ctx))
	defer cancelHandlers()
	r.handlerCtx = grace
	forget := context.AfterFunc(r.c.parent.Life, func() { r.halt(record.ErrClosed) })
	defer forget()

	var receivers, workers, watchers sync.WaitGroup
	for _, w := range r.workers {
		workers.Go(func() { r.work(w) })
	}
	completed := make(chan struct{})
	watchers.Go(func() { r.watch(completed) })
	sources := r.cfg.sources()
	r.countPartitions(sources)
	for _, src := range sources {
		receivers.Go(func() { r.receiveFrom(src) })
	}
	if r.drain != nil {
		watchers.Go(r.drain.watch)
	}
	if r.completions != nil {
		watchers.Go(func() { r.runCompletions(completed) })
	}

	<-r.stop.Done()
	r.sched.Stop(func(it *schedule.Item) bool { return !taskOf(it).copyStored() }) // what runs may finish
	limit := time.AfterFunc(r.cfg.StopTimeout, func() {
		cancelHandlers()
		r.sched.StopNow()
	})
	workers.Wait()
	receivers.Wait() // each closes its session behind its last delivery
	r.briefly(r.copies.Close)
	close(completed)
	limit.Stop()
	r.sched.StopNow()
	watchers.Wait()
	r.metrics.clear()
	return r.outcome(ctx)
}

// stopping reports that nothing more is to be started: what was handed over may still have its
// verdict.
func (r *run) stopping() bool { return r.stop.Err() != nil }

// outcome is what Run returns.
func (r *run) outcome(ctx context.Context) error {
	err := context.Cause(r.stop)
	if errors.Is(err, errDrained) || ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		return nil
	}
	return err
}

// sources are what to subscribe to.
func (c ConsumerConfig) sources() []source {
	var all []source
	for _, t := range c.Topics {
		all = append(all, source{topic: record.FullTopicName(t)})
	}
	if c.Pattern != "" {
		all = append(all, source{pattern: record.FullTopicName(c.Pattern)})
	}
	if c.usesRetryTopic() {
		all = append(all, source{topic: record.FullTopicName(c.Retry.Topic), retry: true})
	}
	return all
}

// receiveFrom keeps a session on src until the run stops.
func (r *run) receiveFrom(src source) {
	var pause backoff.Backoff
	for attempt := 1; r.stop.Err() == nil; attempt++ {
		s, err := r.subscribe(src)
		if err == nil && r.drain != nil {
			if err = r.drain.begin(s); err != nil {
				r.giveUp(s)
			}
		}
		if r.stop.Err() != nil && s == nil {
			return
		}
		r.c.noteSubscribe(src, err)
		if src.retry {
			r.copies.Note(err)
		}
		if err != nil {
			if clientquirks.Permanent(err) {
				r.halt(fmt.Errorf("messaging: subscribe to %s: %w", src, err))
				return
			}
			if attempt == 1 {
				r.log.Warn("cannot subscribe, will keep trying", zap.Stringer("source", src), zap.Error(err))
			}
			backoff.Sleep(r.stop, pause.Next())
			continue
		}
		if attempt > 1 {
			r.log.Info("subscribed", zap.Stringer("source", src), zap.Int("attempt", attempt))
		}
		began := time.Now()
		r.mu.Lock()
		r.sessions[s] = struct{}{}
		r.mu.Unlock()
		looking, endLooking := context.WithCancel(r.stop)
		var finding sync.WaitGroup
		finding.Go(func() { r.findPartitions(looking, s) })
		reason := r.receive(s)
		endLooking()
		finding.Wait()
		if r.drain != nil {
			r.drain.restart(src)
		}
		r.mu.Lock()
		delete(r.sessions, s)
		r.mu.Unlock()
		r.close(s)
		if r.stop.Err() != nil {
			return
		}
		r.metrics.resubscribes.WithLabelValues(r.cfg.Subscription, reason).Inc()
		r.logEnd(s, reason)
		attempt = 0
		// A session that the broker ends at once must not become a busy loop.
		if s.failure() != nil {
			if time.Since(began) > backoff.Max {
				pause.Reset()
			}
			backoff.Sleep(r.stop, pause.Next())
		}
	}
}

// The reasons why we subscribe again by ourselves; clientquirks.CloseReason has the broker's.
const (
	reasonGrow   = "longer_queue"
	reasonShrink = "shorter_queue"
	reasonStop   = "stop"
)

// receive takes messages over from the session and hands them to the scheduler
// until the session has to end. It waits while the scheduler is full:
// behind that the underlying queue fills, and then the broker waits.
func (r *run) receive(s *session) (reason string) {
	batch := make([]*schedule.Item, 0, schedule.ChunkSize)
	growing := false // to end once no batch is received in part
	in := sourceReader{s: s, pauses: &r.c.pauses, name: s.src.String()}
	for {
		var count, bytes int64
		m, received, reason := in.next(r.stop)
		if reason != "" {
			return reason
		}
		for received {
			batch = r.take(s, &m, batch)
			count++
			bytes += weightOf(&m)
			if len(batch) == cap(batch) || bytes >= r.cfg.PrefetchBytes/8 || growing && s.partialBatches <= 0 {
				break
			}
			m, received = in.more()
		}
		s.tookOver(count, bytes)
		s.weights.Add(count, bytes)
		r.metrics.received.Add(float64(len(batch)))
		r.sched.Push(batch)
		if r.drain != nil {
			r.drain.pushed(s.src)
		}
		clear(batch)
		batch = batch[:0]

		if s.OverLimit() && r.mustShrink(s) {
			return reasonShrink
		}
		if len(s.ch) == 0 && !growing {
			growing = r.shouldGrow(s)
		}
		if growing && s.partialBatches <= 0 {
			if r.finishBeforeGrowing(s) {
				return reasonGrow
			}
			growing = false
		}
	}
}

// sourceReader takes messages from a session's channel. It belongs to the receiving goroutine.
type sourceReader struct {
	s          *session
	pauses     *pauses
	name       string // of the source
	pauseCount uint64 // pauses, when the source was last known not to be paused

	heldBack    pulsar.ConsumerMessage // taken when a pause had begun
	hasHeldBack bool
}

// next waits for a message, or until the underlying consumer holds too much. A reason says why the
// session is to end.
func (in *sourceReader) next(stop context.Context) (m pulsar.ConsumerMessage, received bool, reason string) {
	s, waited := in.s, time.Now()
	for {
		ch := s.ch
		in.pauseCount = in.pauses.count.Load()
		paused := in.pauses.of(in.name)
		if paused != nil {
			ch = nil // the underlying queue fills, and then the broker waits
		} else if in.hasHeldBack {
			in.hasHeldBack = false
			return in.heldBack, true, ""
		}
		select {
		case <-stop.Done():
			return m, false, reasonStop
		case <-s.receiving.Done():
			return m, false, endReason(s.failure())
		case <-s.overLimit:
			return m, false, ""
		case <-s.idle:
			s.completeLast()
		case <-paused:
		case m = <-ch:
			if len(s.ch) == 0 && time.Since(waited) > budget.Window {
				s.resetBuffered() // nothing came for long: the underlying queue was empty
			}
			if !in.keep(m) {
				return m, true, ""
			}
		}
	}
}

// keep keeps a message that came when a pause had begun, for the time after it.
func (in *sourceReader) keep(m pulsar.ConsumerMessage) bool {
	if in.pauses.count.Load() == in.pauseCount || in.pauses.of(in.name) == nil {
		return false
	}
	in.heldBack, in.hasHeldBack = m, true
	return true
}

// more returns another message, if one waits and no pause has begun.
func (in *sourceReader) more() (m pulsar.ConsumerMessage, ok bool) {
	if in.pauses.count.Load() != in.pauseCount {
		return m, false
	}
	select {
	case m = <-in.s.ch:
	default:
		return m, false
	}
	if in.keep(m) {
		return pulsar.ConsumerMessage{}, false
	}
	return m, true
}

// take makes a delivery of a message, unless it is here already.
func (r *run) take(s *session, m *pulsar.ConsumerMessage, batch []*schedule.Item) []*schedule.Item {
	id := m.ID()
	index, size := id.BatchIdx(), id.BatchSize()
	switch {
	case size <= 1:
		s.starvation.Entry()
	case index == 0:
		s.starvation.Entry()
		s.partialBatches++
	case index == size-1:
		s.partialBatches--
	}
	if s.dropped {
		return batch // the broker delivers it again
	}
	p := s.partition(m.Topic())
	if !p.arrive(m.Message) {
		s.dropFromHere(errDropped)
		return batch
	}
	if m.GetEncryptionContext() != nil { // before stale: nothing noted its arrival
		s.noteEncrypted(p, m)
		return batch
	}
	if p.stale() || r.drain != nil && !r.drain.wants(m.Message) {
		return batch
	}
	owned, ok := s.owned.await(r.stop, p.topic, int(id.PartitionIdx()), s.receiving.Done())
	if !ok {
		return batch
	}
	e, again := p.receive(m, s.perMessage)
	if p.rewound {
		s.dropFromHere(errRewound)
		return batch
	}
	if again || m.RedeliveryCount() > 0 {
		r.metrics.redelivered.Inc()
	}
	if e == nil {
		return batch
	}
	if r.cfg.ReadCompacted && record.LeftByCompaction(m.Message) {
		p.complete(e, 1)
		return batch
	}
	d := s.tasks.next()
	d.Delivery, d.owned = s.slab.Delivery(m.Message), owned
	d.prepare(s, e, id)
	if s.src.retry {
		d.restore(r.cfg.Subscription)
	}
	r.failed.restore(d)
	r.order(d)
	return append(batch, &d.Item)
}

// order says which messages d waits for.
func (r *run) order(d *task) {
	switch {
	case r.cfg.Order == OrderTotal:
		d.QueueKey, d.Ordered = "", true
	case r.cfg.Order == OrderPartition:
		d.QueueKey, d.Ordered = d.Topic, true
	case r.cfg.Order == OrderKey && d.QueueKey != "":
		d.Ordered = true
	}
}

// work is one worker: it handles what the scheduler gives it until that stops.
func (r *run) work(w *worker) {
	t := stopwatch{worker: &w.Worker, metrics: r.metrics}
	for r.sched.Next(&w.Worker, t.handled, t.elapsed) {
		t.begin()
		for it := w.Claim(); it != nil; it = w.Claim() {
			d := taskOf(it)
			if d.copying == nil && (r.stopping() || d.void()) {
				// Not started and not to be: dropped, so the broker delivers it again.
				r.failed.note(d)
				w.finish(d)
				continue
			}
			if d.copying != nil {
				r.finishCopy(w, d)
				continue
			}
			// A session may have ended while an earlier delivery of d was handled: that attempt
			// may have failed since d was received.
			if d.Attempt == 1 && r.failed.restore(d) && time.Until(d.Due) > 0 {
				r.sched.GiveBack(&w.Worker)
				r.hold(d, d.Due, false)
				continue
			}
			var err error
			if r.completions != nil {
				r.hand(w, d)
			} else {
				err = r.call(d)
			}
			t.next()
			if r.completions == nil {
				r.complete(w, d, err)
			}
		}
		t.end()
		r.count(w)
	}
}

// count counts what the worker handled since the last call.
func (r *run) count(w *worker) {
	if w.handled > 0 {
		r.handled.Add(int64(w.handled))
		r.metrics.acks.Add(float64(w.handled))
		w.handled = 0
	}
}

// call runs the handler. A panic is an error like another.
func (r *run) call(d *task) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = r.panicked(d, v)
		}
	}()
	return r.handler(r.handlerContext(d), d.Delivery)
}

// panicked counts and logs that d's handler panicked with v, and returns that as its verdict. The
// handler's stack is still there.
func (r *run) panicked(d *task, v any) error {
	r.metrics.panics.Inc()
	if _, ok := r.lines.Allow(); ok {
		r.log.Error("handler panicked", zap.Any("panic", v), zap.String("topic", d.Topic),
			zap.Stringer("message_id", d.ID), zap.ByteString("stack", debug.Stack()))
	}
	return fmt.Errorf("handler panicked: %v", v)
}

// handlerContext is what d's handler gets.
func (r *run) handlerContext(d *task) context.Context {
	if d.owned != nil {
		return d.session.owned.current(d.owned, d.entry.partition.topic).ctx
	}
	return r.handlerCtx
}
