// Package budget chooses the length of the underlying consumer's receive queue, so that the queue
// holds a limited number of bytes. It imports no other package of this repository.
package budget

import "time"

// A Budget divides the bytes that may be received. Received and unfinished messages are in two
// places: in the underlying consumer (its queue, and the channel to us), and in the scheduler. Each
// may use half of the bytes, and as many messages as are to be sent ahead.
//
// The scheduler counts bytes. The underlying consumer counts messages only, per
// partition, and its queue's length is fixed when it subscribes: it sets
// how many messages the broker sends ahead. So the length follows the weight of
// messages: at first MaxMessageBytes. When they are lighter, and the short queue
// limits the consumer, the consumer subscribes again with a longer one. When heavier messages
// arrive than the length was chosen for, it subscribes again with a shorter one at once.
//
// The broker overshoots: it continues as long as one permit is left, with a read of
// up to 5 MiB (dispatcherMaxReadSizeBytes) whatever is in it.
type Budget struct {
	messages int   // sent ahead, over all partitions
	bytes    int64 // underlying consumers' half
	assumed  int64 // weight of a message before any was seen
	fixed    bool  // the length may not change: a subscription without a position

	growFactor int
}

// Safety is how much heavier than seen messages are taken to be.
const Safety = 2

// Window is the time within which an emptied queue counts as pressure.
const Window = 100 * time.Millisecond

const (
	// readOvershoot is how much a broker's read may exceed the permits.
	readOvershoot = 8 << 20
	// growFactor is how much longer a queue must become to be worth subscribing
	// again, and shrinkFactor how much shorter.
	growFactor   = 2
	shrinkFactor = 2
	// limitedRate is how many times per Window a queue must have been
	// emptied, counted in the broker's entries (a permit lets one through, and its
	// whole batch with it), for its length to count as what limits us.
	limitedRate = 2
	// Brokers wait for a second before they deliver to a failover consumer that has
	// subscribed (activeConsumerFailoverDelayTimeMillis), so subscribing again is
	// expensive there. Such a consumer takes messages for lighter at first and
	// relies on the correction if they are not; and it grows only for much.
	failoverAssumed    = 64 << 10
	failoverGrowFactor = 16
	// blockMessages is over how many messages their weight is averaged.
	blockMessages = 64
)

// Config has the bounds of a budget.
type Config struct {
	Messages   int   // to be sent ahead, over all partitions
	Bytes      int64 // of messages that are received and not finished
	MaxMessage int64 // assumed weight of a message before any was seen
	// Failover says that brokers wait for a second whenever the consumer subscribes.
	Failover bool
	// Fixed says that the consumer must not subscribe again for another queue length.
	Fixed bool
}

// New returns the budget for c.
func New(c Config) Budget {
	b := Budget{
		messages: c.Messages, bytes: max(c.Bytes/2, 1),
		assumed: c.MaxMessage, growFactor: growFactor, fixed: c.Fixed,
	}
	if c.Failover {
		b.assumed, b.growFactor = min(b.assumed, failoverAssumed), failoverGrowFactor
	}
	return b
}

// Assumed is the assumed weight of a message before any was seen.
func (b Budget) Assumed() int64 { return b.assumed }

// Fixed reports whether the queue's length must not change.
func (b Budget) Fixed() bool { return b.fixed }

// WorthGrowing reports whether a queue of length would gain enough by becoming wanted long.
func (b Budget) WorthGrowing(length, wanted int) bool { return wanted >= length*b.growFactor }

// WorthShrinking reports whether a queue of length is so much longer than wanted that it must
// become shorter.
func (b Budget) WorthShrinking(length, wanted int) bool { return wanted*shrinkFactor <= length }

// QueueLength is the receive queue of one partition out of n for messages of this
// weight. The channel behind the queue adds up to half as much.
func (b Budget) QueueLength(n int, weight int64) int {
	n, weight = max(n, 1), max(weight, 1)
	// Two thirds of the bytes, since the channel holds up to half as much.
	return max(int(min(int64(b.messages), b.bytes/weight*2/3))/n, 1)
}

// ChannelLength is the capacity of the channel behind a queue: long enough that
// the goroutines on its two sides need not take turns for every message.
func ChannelLength(queue int) int { return min(max(queue/2, 1), 256) }

// Limit is how many bytes the underlying consumer of n partitions out of all may
// hold before its queue is too long.
func (b Budget) Limit(n, all int) int64 {
	return b.bytes*int64(max(n, 1))/int64(max(all, 1)) + readOvershoot
}

// Weigher estimates the weight of a message: the heaviest recent average, so that a
// single large message among small ones does not decide, and a run of them does.
// One goroutine uses it.
type Weigher struct {
	count, bytes int64
	heaviest     int64
}

// Add notes received messages.
func (w *Weigher) Add(count, bytes int64) {
	w.count += count
	w.bytes += bytes
	if w.count >= blockMessages {
		w.heaviest = max(w.bytes/w.count, w.heaviest-w.heaviest/1024)
		w.count, w.bytes = 0, 0
	}
}

// Weight is the estimate, false before anything was seen.
func (w *Weigher) Weight() (int64, bool) {
	h := w.heaviest
	if w.count > 0 && h == 0 {
		h = w.bytes / w.count
	}
	return h * Safety, h > 0
}

// Starvation finds out whether a queue's length limits its consumer: the queue was
// emptied many times within a short time.
type Starvation struct {
	start   time.Time // of the present window
	entries int       // taken from the queue since
}

// NewStarvation begins a window at now.
func NewStarvation(now time.Time) Starvation { return Starvation{start: now} }

// Entry notes an entry that was taken from the queue.
func (p *Starvation) Entry() { p.entries++ }

// Limited is called when the queue was found empty.
func (p *Starvation) Limited(now time.Time, queue int) bool {
	if p.entries >= limitedRate*queue && now.Sub(p.start) <= Window {
		return true
	}
	if now.Sub(p.start) > Window {
		*p = Starvation{start: now}
	}
	return false
}
