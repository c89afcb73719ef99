package messaging

import "time"

// The receive budget. What is received and not finished stands in two places: in
// the underlying consumer (its queue, and the channel to us), and in the
// scheduler. Each may use half of the bytes, and as many messages as are to be sent
// ahead.
//
// The scheduler counts bytes. The underlying consumer counts messages only, per
// partition, and its queue's length is fixed when it subscribes: it tells the
// broker how many messages to send ahead. So the length is chosen from what
// messages weigh: at first from MaxMessageBytes, and when they turn out lighter,
// and the short queue is what limits us, the consumer subscribes again with a
// longer one. When heavier messages arrive than the length was chosen for, it
// subscribes again with a shorter one at once.
//
// The broker overshoots: it goes on as long as one permit is left, with a read of
// up to 5 MiB (dispatcherMaxReadSizeBytes) whatever is in it.
type budget struct {
	messages int   // sent ahead, over all partitions
	bytes    int64 // underlying consumers' half
	assumed  int64 // weight of a message before any was seen
	fixed    bool  // the length may not change: a subscription without a position

	growFactor int
}

const (
	// readOvershoot is what a broker's read may bring beyond the permits.
	readOvershoot = 8 << 20
	// safety is how much heavier than seen messages are taken to be.
	safety = 2
	// growFactor is how much longer a queue must become to be worth subscribing
	// again, and shrinkFactor how much shorter.
	growFactor   = 2
	shrinkFactor = 2
	// limitedRate is how many times per limitedWindow a queue must have been
	// emptied, counted in the broker's entries (a permit lets one through, and its
	// whole batch with it), for its length to count as what limits us.
	limitedRate   = 2
	limitedWindow = 100 * time.Millisecond
	// growPatience is how long a receiver that is to subscribe again waits for what
	// is in flight before it goes on instead.
	growPatience = 500 * time.Millisecond
	// growRetry is how long it goes on as it is when that was in vain: verdicts may be
	// given late, and nothing is received while it waits.
	growRetry = 10 * time.Second
	// Brokers wait for a second before they deliver to a failover consumer that has
	// subscribed (activeConsumerFailoverDelayTimeMillis), so subscribing again is
	// expensive there. Such a consumer takes messages for lighter at first and
	// relies on the correction if they are not; and it grows only for much.
	failoverAssumed    = 64 << 10
	failoverGrowFactor = 16
	// growAgainAfter is how long after a shrink a queue may grow again.
	growAgainAfter = 30 * time.Second
	// blockMessages is over how many messages their weight is averaged.
	blockMessages = 64
)

func newBudget(c ConsumerConfig) budget {
	b := budget{
		messages: c.PrefetchMessages, bytes: max(c.PrefetchBytes/2, 1),
		assumed: c.MaxMessageBytes, growFactor: growFactor, fixed: !c.Durable,
	}
	if c.Type == Failover && c.Durable {
		b.assumed, b.growFactor = min(b.assumed, failoverAssumed), failoverGrowFactor
	}
	return b
}

// queueLength is the receive queue of one partition out of n for messages of this
// weight. The channel behind the queue adds up to half as much.
func (b budget) queueLength(n int, weight int64) int {
	n, weight = max(n, 1), max(weight, 1)
	// Two thirds of the bytes, since the channel holds up to half as much.
	return max(int(min(int64(b.messages), b.bytes/weight*2/3))/n, 1)
}

// channelLength is the capacity of the channel behind a queue: long enough that
// the goroutines on its two sides need not take turns for every message.
func channelLength(queue int) int { return min(max(queue/2, 1), 256) }

// limit is how many bytes the underlying consumer of n partitions out of all may
// hold before its queue is too long.
func (b budget) limit(n, all int) int64 {
	return b.bytes*int64(max(n, 1))/int64(max(all, 1)) + readOvershoot
}

// weigher estimates what a message weighs: the heaviest recent average, so that a
// single large message among small ones does not decide, and a run of them does.
// One goroutine uses it.
type weigher struct {
	count, bytes int64
	heaviest     int64
}

// add notes received messages.
func (w *weigher) add(count, bytes int64) {
	w.count += count
	w.bytes += bytes
	if w.count >= blockMessages {
		w.heaviest = max(w.bytes/w.count, w.heaviest-w.heaviest/1024)
		w.count, w.bytes = 0, 0
	}
}

// weight is the estimate, false before anything was seen.
func (w *weigher) weight() (int64, bool) {
	h := w.heaviest
	if w.count > 0 && h == 0 {
		h = w.bytes / w.count
	}
	return h * safety, h > 0
}

// pressure tells whether a queue's length is what limits its consumer: it was
// emptied over and over within a short time.
type pressure struct {
	start   time.Time // of the present window
	entries int       // taken from the queue since
}

// limited is called when the queue was found empty.
func (p *pressure) limited(now time.Time, queue int) bool {
	if p.entries >= limitedRate*queue && now.Sub(p.start) <= limitedWindow {
		return true
	}
	if now.Sub(p.start) > limitedWindow {
		*p = pressure{start: now}
	}
	return false
}
