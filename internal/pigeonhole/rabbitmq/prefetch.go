package rabbitmq

import "errors"

// prefetch is how many messages of one channel may be delivered and not acknowledged. AMQP
// counts messages (RabbitMQ knows no prefetch-size), so the count follows their size: few
// until some were seen, and others when they become larger or smaller. RabbitMQ takes
// another count for a new consumer only; see errResize. It is used by one goroutine.
type prefetch struct {
	most  int   // messages
	bytes int64 // that they may have

	count int // in force; 0 before the first channel
	seen  int // messages since the last look, with half of those before
	sum   int64
}

const (
	// sizeUnseen is how large messages are taken to be before any was seen.
	sizeUnseen = 1 << 20
	// sizesSeen is how many messages are looked at together, if as many may be there.
	sizesSeen = 128
)

// errResize ends a channel so that the next has another prefetch. Its messages that are on
// their way are waited for; the others go back to where they were in the queue, so that
// order is kept, with x-single-active-consumer, too, and nothing is stored twice.
var errResize = errors.New("the prefetch follows the size of messages")

// begin returns the count of a new channel.
func (p *prefetch) begin() int {
	if p.count == 0 {
		p.count = p.fitting(sizeUnseen)
	}
	return p.count
}

// fitting is how many messages of size there may be.
func (p *prefetch) fitting(size int64) int {
	return int(min(max(p.bytes/size, 1), int64(p.most)))
}

// note notes the size of a message, and reports whether the count is to change: when it is
// half or twice of what it should be.
func (p *prefetch) note(size int64) (resize bool) {
	p.seen++
	p.sum += size
	if p.seen < min(p.count, sizesSeen) {
		return false
	}
	want := p.fitting(max(p.sum/int64(p.seen), 1))
	p.seen, p.sum = p.seen/2, p.sum/2
	if 2*want > p.count && want < 2*p.count {
		return false
	}
	p.count, p.seen, p.sum = want, 0, 0
	return true
}
