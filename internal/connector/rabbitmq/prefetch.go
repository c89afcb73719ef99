package rabbitmq

import (
	"cmp"
	"errors"
	"time"
)

const (
	// assumedSize is the size that messages are assumed to have before any was seen.
	assumedSize = 1 << 20
	// minSamples is how many messages observe averages over, or the count if that is smaller.
	minSamples = 128
	// resizeTimeout is how long a change of the count waits for the offered messages to be stored.
	resizeTimeout = 2 * time.Second
)

// errResize ends a channel so that the next one has another prefetch: RabbitMQ applies another count
// to new consumers only. The source first waits until the offered messages are stored, so that none
// is stored twice; if that takes longer than resizeTimeout, the prefetch stays. The other deliveries
// return to their places in the queue, also with x-single-active-consumer.
var errResize = errors.New("the prefetch follows the size of messages")

// prefetch chooses how many messages of one channel may be delivered and not acknowledged. AMQP
// counts messages (RabbitMQ does not support prefetch-size), so the count follows their size. One
// goroutine uses it.
type prefetch struct {
	maxMessages int
	maxBytes    int64
	first       int // the count of a channel that was opened for any reason but a resize

	count        int // in force
	next         int // the count after a resize; 0: first
	samples      int // messages since the last look, with half of those before
	sampledBytes int64
}

// newPrefetch returns the prefetch of a channel of q. When a channel ends, its unacknowledged messages
// return to the queue, and a quorum queue drops a message at its delivery limit. So a channel begins
// with one message, and gets more once that is stored. Classic queues and streams have no limit. A
// queue without a configured type may be a quorum queue.
func newPrefetch(q Queue, maxMessages int, maxBytes int64) prefetch {
	p := prefetch{maxMessages: maxMessages, maxBytes: maxBytes, first: 1}
	if q.Type == typeClassic || q.Type == typeStream {
		p.first = p.countFor(assumedSize)
	}
	return p
}

// beginChannel returns the count of a new channel.
func (p *prefetch) beginChannel() int {
	p.count, p.next = cmp.Or(p.next, p.first), 0
	return p.count
}

// countFor is how many messages of size fit into maxBytes, within 1 and maxMessages.
func (p *prefetch) countFor(size int64) int {
	return int(min(max(p.maxBytes/size, 1), int64(p.maxMessages)))
}

// observe records the size of a message, and reports whether the count is to change: when it is at
// most half, or at least twice, of what it should be.
func (p *prefetch) observe(size int64) (resize bool) {
	p.samples++
	p.sampledBytes += size
	if p.samples < min(p.count, minSamples) {
		return false
	}
	want := p.countFor(max(p.sampledBytes/int64(p.samples), 1))
	p.samples, p.sampledBytes = p.samples/2, p.sampledBytes/2
	if 2*want > p.count && want < 2*p.count {
		return false
	}
	p.next, p.samples, p.sampledBytes = want, 0, 0
	return true
}
