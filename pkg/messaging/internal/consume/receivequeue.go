package consume

import (
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/budget"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
)

// How long the receive queue of a session is, and what it holds: see ADR 5.

// queueLength is the receive queue of each partition of src, out of all.
func (r *run) queueLength(src source, all int) int {
	n := r.budget.QueueLength(all, r.weightOf(src))
	if src.retry { // few, and not worth a share
		n = min(n, retryQueue)
	}
	return n
}

// retryQueue is the receive queue of a retry topic.
const retryQueue = 16

// countPartitions finds out how many partitions there are over all sources, so
// that the first to subscribe does not take it all. Failures show when subscribing.
func (r *run) countPartitions(sources []source) {
	if len(sources) == 1 {
		return // subscribing counts its own
	}
	var wg sync.WaitGroup
	for _, src := range sources {
		if src.pattern != "" || src.retry {
			continue
		}
		wg.Go(func() {
			if topics, err := r.c.parent.Consumers.TopicPartitions(src.topic); err == nil {
				r.notePartitions(src, len(topics))
			}
		})
	}
	clientquirks.Within(r.stop, wg.Wait)
}

func (r *run) notePartitions(src source, n int) {
	r.mu.Lock()
	r.parts[src] = max(n, 1)
	r.mu.Unlock()
}

// partitions is how many src has, and how many there are over all sources but the
// retry topic.
func (r *run) partitions(src source) (n, all int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s, n := range r.parts {
		if !s.retry {
			all += n
		}
	}
	return max(r.parts[src], 1), max(all, 1)
}

// weightOf is what a message of src is taken to weigh.
func (r *run) weightOf(src source) int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	if w, ok := r.weights[src]; ok {
		return w.weight
	}
	return r.budget.Assumed()
}

// noteWeight sets what messages of src are taken to weigh. The queue does not grow
// again before growAfter.
func (r *run) noteWeight(src source, weight int64, growAfter time.Time) {
	r.mu.Lock()
	r.weights[src] = sourceWeight{weight, growAfter}
	r.mu.Unlock()
}

func (r *run) mayGrow(src source, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return now.After(r.weights[src].growAfter)
}

// sourceWeight is what messages of a source are taken to weigh.
type sourceWeight struct {
	weight    int64
	growAfter time.Time
}

// BeforeConsume weighs a message that arrives. It runs on the connection's reader
// goroutine and must not block.
func (s *session) BeforeConsume(m pulsar.ConsumerMessage) {
	s.arrivals.note(m.Message)
	buffered := s.buffered.Add(1<<bufferedShift + weightOf(&m))
	if buffered&(1<<bufferedShift-1) > s.limit && s.queue > 1 && s.SetOverLimit() {
		select {
		case s.overLimit <- struct{}{}:
		default:
		}
		go s.wake() // takes a lock
	}
}

// bufferedShift leaves a terabyte for the bytes. Both counts are in one word because
// two goroutines share it for every message.
const bufferedShift = 40

// bufferedNow is what the underlying consumer holds.
func (s *session) bufferedNow() (messages, bytes int64) {
	buffered := s.buffered.Load()
	return buffered >> bufferedShift, buffered & (1<<bufferedShift - 1)
}

// resetBuffered sets the counts to nothing. The underlying client empties its queue
// when it reconnects and does not say so, so the counts can only be trusted upwards:
// they are corrected whenever the queue is known to be empty.
func (s *session) resetBuffered() { s.buffered.Store(0) }

// tookOver notes messages that were taken over from the underlying consumer. More may
// be taken than is counted after resetBuffered.
func (s *session) tookOver(messages, bytes int64) {
	delta := messages<<bufferedShift + bytes
	if s.buffered.Add(-delta) < 0 {
		s.resetBuffered()
	}
}

// weightOf is what a message counts for while the underlying consumer holds it.
func weightOf(m *pulsar.ConsumerMessage) int64 { return int64(len(m.Payload()) + deliveryOverhead) }

// mustShrink reports whether the underlying queue is too long for what arrives.
func (r *run) mustShrink(s *session) bool {
	messages, bytes := s.bufferedNow()
	weight := bytes / max(messages, 1)
	_, all := r.partitions(s.src)
	if r.budget.Fixed() || !r.budget.WorthShrinking(s.queue, r.budget.QueueLength(all, weight)) {
		s.resetBuffered() // counted wrongly: a reconnect emptied the queue
		s.ClearOverLimit()
		return false
	}
	r.noteWeight(s.src, weight*budget.Safety, time.Now().Add(growAgainAfter))
	return true
}

// shouldGrow reports whether a longer queue would help. It is called when the
// queue is empty.
func (r *run) shouldGrow(s *session) bool {
	now := time.Now()
	if !s.starvation.Limited(now, s.queue*s.partitions) || r.budget.Fixed() || s.src.retry || now.Before(s.noGrowBefore) {
		return false
	}
	weight, known := s.weights.Weight()
	if s.src.pattern != "" {
		r.notePartitions(s.src, len(s.parts))
	}
	_, all := r.partitions(s.src)
	if !known || !r.budget.WorthGrowing(s.queue, r.budget.QueueLength(all, weight)) || !r.mayGrow(s.src, now) {
		s.starvation = budget.NewStarvation(now)
		return false
	}
	r.noteWeight(s.src, weight, time.Time{})
	return true
}

// finishBeforeGrowing waits until what was received is finished, so that nothing is handled
// twice for the sake of a longer queue. With slow handlers it gives up: then the
// queue is not what limits them.
func (r *run) finishBeforeGrowing(s *session) bool {
	deadline := time.Now().Add(growTimeout)
	t := time.AfterFunc(growTimeout, r.sched.Wake)
	defer t.Stop()
	if r.sched.AwaitEnd(&s.Group, func() bool { return r.stopping() || !time.Now().Before(deadline) }) {
		return true
	}
	s.starvation = budget.NewStarvation(time.Now())
	s.noGrowBefore = time.Now().Add(growRetry)
	return false
}

const (
	// growTimeout is how long a receiver that is to subscribe again waits for what
	// is in flight before it continues instead.
	growTimeout = 500 * time.Millisecond
	// growRetry is how long it continues as it is when that was in vain: verdicts may be
	// given late, and nothing is received while it waits.
	growRetry = 10 * time.Second
	// growAgainAfter is how long after a shrink a queue may grow again.
	growAgainAfter = 30 * time.Second
)
