package pigeonhole

import (
	"context"
	"strconv"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// Headers of dead letters.
const (
	deadLetterReason  = "dead-letter-reason"  // a short word, see pipeline.Refuse
	deadLetterError   = "dead-letter-error"   // the error as text
	deadLetterRoute   = "dead-letter-route"   // the route's name
	deadLetterTo      = "dead-letter-to"      // the message's destination
	deadLetterOmitted = "dead-letter-omitted" // the sizes of value and key and the number of headers, in a dead letter without them
	maxDeadLetterText = 1 << 10
)

// storeDeadLetter stores a refused message as a dead letter, with the reason and the origin. If the
// dead-letter sink refuses it (it is too large, for example) and mayStub allows it, a stub without
// key, value and headers is stored: the origin says where to find the message.
func (r *route) storeDeadLetter(ctx context.Context, to string, m *message.Message, reason error, done func(error)) {
	reasonHeaders := []message.Header{
		{Name: deadLetterReason, Value: []byte(pipeline.Reason(reason))}, {Name: deadLetterError, Value: []byte(truncate.Text(reason.Error(), maxDeadLetterText))},
		{Name: deadLetterRoute, Value: []byte(r.cfg.Name)}, {Name: deadLetterTo, Value: []byte(truncate.Text(to, maxDeadLetterText))},
	}
	deadLetter := *m
	deadLetter.OmitOrigin = false
	// Its hop is the dead-letter topic, not the source's topic: it may be put back there.
	deadLetter.Hop = r.deadLetterSink.PlaceName(r.cfg.DeadLetter.To)
	deadLetter.Headers = append(append([]message.Header(nil), m.Headers...), reasonHeaders...)
	r.deadLetterSink.Send(ctx, r.cfg.DeadLetter.To, &deadLetter, func(err error) {
		if _, refused := pipeline.Refused(err); !refused || !r.mayStub(m) {
			done(err)
			return
		}
		stub := deadLetter
		stub.Key, stub.Value = nil, []byte{}
		sizes := "value=" + strconv.Itoa(len(m.Value)) + " key=" + strconv.Itoa(len(m.Key)) + " headers=" + strconv.Itoa(len(m.Headers))
		stub.Headers = append(reasonHeaders, message.Header{Name: deadLetterOmitted, Value: []byte(sizes)})
		stub.AMQP = nil
		// In a goroutine of its own: this callback must not block.
		go r.deadLetterSink.Send(ctx, r.cfg.DeadLetter.To, &stub, done)
	})
}

// mayStub reports whether a stub may replace the dead letter of m. By default it may if m has an
// offset: then the source keeps the message after it is acknowledged.
func (r *route) mayStub(m *message.Message) bool {
	switch r.cfg.DeadLetter.Refused {
	case refusedStub:
		return true
	case refusedStop:
		return false
	default:
		return m.From.Offset >= 0
	}
}
