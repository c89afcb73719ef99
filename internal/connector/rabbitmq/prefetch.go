package rabbitmq

import (
	"errors"
	"time"
)

// prefetch is how many messages of one channel may be delivered and not acknowledged. AMQP
// counts messages (RabbitMQ knows no prefetch-size), so the count follows their size: few
// until some were seen, and others when they become larger or smaller. RabbitMQ takes
// another count for a new consumer only; see errResize. It is used by one goroutine.
type prefetch struct {
	most  int   // messages
	bytes int64 // that they may have

	count int // in force; 0 before the first channel
	next  int // of the next channel; 0: the same
	seen  int // messages since the last look, with half of those before
	sum   int64
}

const (
	// sizeUnseen is how large messages are taken to be before any was seen.
	sizeUnseen = 1 << 20
	// sizesSeen is how many messages are looked at together, if as many may be there.
	sizesSeen = 128
	// resizeTime is how long a change waits for what is on its way.
	resizeTime = 2 * time.Second
)

// errResize ends a channel so that the next has another prefetch. Its messages that were on
// their way have been waited for; the others go back to where they were in the queue, so that
// order is kept, with x-single-active-consumer, too, and nothing is stored twice. Where they
// take longer than resizeTime, as when the sink is away, the prefetch stays for now.
var errResize = errors.New("the prefetch follows the size of messages")

// begin returns the count of a new channel.
func (p *prefetch) begin() int {
	switch {
	case p.next > 0:
		p.count, p.next = p.next, 0
	case p.count == 0:
		p.count = p.fitting(sizeUnseen)
	}
	return p.count
}

// fitting is how many messages of size there may be.
func (p *prefetch) fitting(size int64) int {
	return int(min(max(p.bytes/size, 1), int64(p.most)))
}

// note notes the size of a message, and reports whether the count is to change: when it is
// half or twice of what it should be. A channel that goes on nevertheless is asked to end again
// after as many messages.
func (p *prefetch) note(size int64) (resize bool) {
	p.seen++
	p.sum += size
	if p.seen < min(p.count, sizesSeen) {
		return false
	}
	want := p.fitting(max(p.sum/int64(p.seen), 1))
	p.next = 0
	p.seen, p.sum = p.seen/2, p.sum/2
	if 2*want > p.count && want < 2*p.count {
		return false
	}
	p.next, p.seen, p.sum = want, 0, 0
	return true
}
