package rabbitmq

import (
	"strconv"
	"sync"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// streamPlace is how far a stream has been replicated. RabbitMQ does not keep it for AMQP 0-9-1 consumers, so it lasts as long as the process.
type streamPlace struct {
	mu    sync.Mutex
	marks []mark // delivered and not committed, ascending
	after int64  // the offset behind the last committed message, or of the first that was delivered
	known bool
	began time.Time // when the first consumer was asked for; what is stored from then on is wanted
}

// clockSkew is how far the broker's clock may be behind ours without a loss, see arguments.
const clockSkew = time.Minute

// begin notes that there is a consumer, which was asked for at that time.
func (p *streamPlace) begin(at time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.began.IsZero() {
		p.began = at
	}
}

type mark struct {
	tag    uint64
	offset int64
}

func (p *streamPlace) delivered(tag uint64, offset int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.known {
		// The configuration's offset may mean another place the next time: next, last, a timestamp.
		p.after, p.known = offset, true
	}
	p.marks = append(p.marks, mark{tag, offset})
}

func (p *streamPlace) committed(tag uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.marks) && p.marks[n].tag <= tag {
		p.after, p.known = p.marks[n].offset+1, true
		n++
	}
	p.marks = p.marks[n:]
}

// restart forgets what was delivered, as delivery tags begin anew, and returns the offset to go on from, if there is one, and when the first consumer
// began, zero for none.
func (p *streamPlace) restart() (after int64, known bool, began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.marks = nil
	return p.after, p.known, p.began
}

// arguments of a consumer. The places next and last move on: where nothing was delivered before a channel ended, the next one asks for what is
// stored since the first began, by time. RabbitMQ takes that for about that time, and never leaves out what is later; its clock may be another.
func (t *tap) arguments() amqp.Table {
	if t.queue.Type != typeStream {
		return nil
	}
	after, known, began := t.place.restart()
	if known {
		return amqp.Table{headerStreamOffset: after}
	}
	if moves := t.queue.Offset == "next" || t.queue.Offset == "last"; moves && !began.IsZero() {
		return amqp.Table{headerStreamOffset: began.Add(-clockSkew)}
	}
	if n, err := strconv.ParseInt(t.queue.Offset, 10, 64); err == nil {
		return amqp.Table{headerStreamOffset: n}
	}
	if t.queue.Offset == "" {
		return amqp.Table{headerStreamOffset: "first"}
	}
	return amqp.Table{headerStreamOffset: t.queue.Offset}
}
