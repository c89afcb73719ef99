package rabbitmq

import (
	"cmp"
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/aviaryhq/aviary/internal/ring"
)

// clockSkew is how far the broker's clock may be behind ours without a loss.
const clockSkew = time.Minute

// streamPosition is where a stream is read from on the next channel. RabbitMQ stores no offsets for
// AMQP 0-9-1 consumers, so it lasts only as long as the process.
type streamPosition struct {
	mu      sync.Mutex
	pending ring.Ring[deliveredOffset] // delivered and not committed, ascending
	// from is the argument of the consumer: the configured place, then a time, then the offset of
	// the first delivered message or the one behind the last committed message.
	from any
}

type deliveredOffset struct {
	tag    uint64
	offset int64
}

// started records that a consumer was requested at that time. The places next and last depend on
// when they are asked for, so the next channel asks for what was stored since then. RabbitMQ begins
// at or before that time by its own clock.
func (p *streamPosition) started(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.from == "next" || p.from == "last" {
		p.from = at.Add(-clockSkew)
	}
}

func (p *streamPosition) delivered(tag uint64, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, known := p.from.(int64); !known {
		p.from = offset
	}
	p.pending.Push(deliveredOffset{tag, offset})
}

func (p *streamPosition) committed(tag uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.pending.Len() > 0 && p.pending.Head().tag <= tag {
		p.from = p.pending.Pop().offset + 1
	}
}

// arguments are those of the consumer of a new channel, which has new delivery tags.
func (c *queueConsumer) arguments() amqp.Table {
	if c.queue.Type != typeStream {
		return nil
	}
	p := &c.position
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pending.Clear()
	if p.from == nil {
		p.from = cmp.Or(c.queue.Offset, "first")
		if n, err := strconv.ParseInt(c.queue.Offset, 10, 64); err == nil {
			p.from = n
		}
	}
	return amqp.Table{headerStreamOffset: p.from}
}
