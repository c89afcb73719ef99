package rabbitmq

import (
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/ring"
)

// streamPosition is how far a stream has been replicated. RabbitMQ stores no offsets for AMQP 0-9-1
// consumers, so the position lasts only as long as the process.
type streamPosition struct {
	mu         sync.Mutex
	pending    ring.Ring[deliveredOffset] // delivered and not committed, ascending
	nextOffset int64                      // the offset behind the last committed message, or of the first that was delivered
	hasOffset  bool
	firstStart time.Time // when the first consumer was asked for; what is stored from then on is wanted
}

// clockSkew is how far the broker's clock may be behind ours without a loss, see arguments.
const clockSkew = time.Minute

// started records that a consumer was requested at that time. Only the first one counts.
func (p *streamPosition) started(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.firstStart.IsZero() {
		p.firstStart = at
	}
}

type deliveredOffset struct {
	tag    uint64
	offset int64
}

func (p *streamPosition) delivered(tag uint64, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hasOffset {
		// The configured offsets next and last may select another message the next time.
		p.nextOffset, p.hasOffset = offset, true
	}
	p.pending.Push(deliveredOffset{tag, offset})
}

func (p *streamPosition) committed(tag uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.pending.Len() > 0 && p.pending.Head().tag <= tag {
		p.nextOffset, p.hasOffset = p.pending.Pop().offset+1, true
	}
}

// restart forgets the delivered messages, because a new channel has new delivery tags. It returns
// the offset to continue from, if it is known, and when the first consumer was requested, zero for
// never.
func (p *streamPosition) restart() (after int64, known bool, began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending.Clear()
	return p.nextOffset, p.hasOffset, p.firstStart
}

// arguments are those of the consumer. The offsets next and last depend on when they are used. If
// nothing was delivered before a channel ended, the next channel therefore asks by time for what
// was stored since the first consumer was requested. RabbitMQ then begins at or before that time by
// its own clock, hence clockSkew.
func (c *queueConsumer) arguments() amqp.Table {
	if c.queue.Type != typeStream {
		return nil
	}
	after, known, began := c.position.restart()
	if known {
		return amqp.Table{headerStreamOffset: after}
	}
	if moves := c.queue.Offset == "next" || c.queue.Offset == "last"; moves && !began.IsZero() {
		return amqp.Table{headerStreamOffset: began.Add(-clockSkew)}
	}
	if n, err := strconv.ParseInt(c.queue.Offset, 10, 64); err == nil {
		return amqp.Table{headerStreamOffset: n}
	}
	if c.queue.Offset == "" {
		return amqp.Table{headerStreamOffset: "first"}
	}
	return amqp.Table{headerStreamOffset: c.queue.Offset}
}
