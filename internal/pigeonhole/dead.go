package pigeonhole

import (
	"context"
	"strconv"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
)

// Headers of dead letters.
const (
	deadReason   = "dead-letter-reason"  // a short word, see lane.Refuse
	deadError    = "dead-letter-error"   // the error as text
	deadRoute    = "dead-letter-route"   // the route's name
	deadTo       = "dead-letter-to"      // where the message was to go
	deadOmitted  = "dead-letter-omitted" // the sizes of value and headers, when only its place is kept
	maxDeadError = 1 << 10
)

// storeDeadLetter stores a refused message with the reason and with where it came from.
// A dead letter that is refused itself, being too large for instance, is stored without
// key, value and headers where the source keeps the message: its origin says where to
// find it. Elsewhere that is the configuration's choice.
func (r *route) storeDeadLetter(ctx context.Context, to string, m *message.Message, reason error, done func(error)) {
	marks := []message.Header{
		{Name: deadReason, Value: []byte(lane.Reason(reason))}, {Name: deadError, Value: []byte(cut(reason.Error(), maxDeadError))},
		{Name: deadRoute, Value: []byte(r.cfg.Name)}, {Name: deadTo, Value: []byte(cut(to, maxDeadError))},
	}
	letter := *m
	letter.OmitOrigin = false
	// It has not been passed on from where it was taken, and may go there again.
	letter.Hop = r.dead.PlaceName(r.cfg.DeadLetter.To)
	letter.Headers = append(append([]message.Header(nil), m.Headers...), marks...)
	r.dead.Send(ctx, r.cfg.DeadLetter.To, &letter, func(err error) {
		if _, refused := lane.Refused(err); !refused || !r.mayStub(m) {
			done(err)
			return
		}
		stub := letter
		stub.Key, stub.Value = nil, []byte{}
		sizes := "value=" + strconv.Itoa(len(m.Value)) + " key=" + strconv.Itoa(len(m.Key)) + " headers=" + strconv.Itoa(len(m.Headers))
		stub.Headers = append(marks, message.Header{Name: deadOmitted, Value: []byte(sizes)})
		stub.AMQP = nil
		// Not from within done, which must not block.
		go r.dead.Send(ctx, r.cfg.DeadLetter.To, &stub, done)
	})
}

// mayStub reports whether a message may be kept without its body. What has an offset
// stays at the source when it is acknowledged.
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

// cut shortens a text to n bytes.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return s[:n] + "..."
}
