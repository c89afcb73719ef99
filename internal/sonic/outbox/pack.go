package outbox

import (
	"context"
	"fmt"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// tail returns the end of a topic whose last message is d; nil: the topic is empty. It skips
// messages at the end that this zone's Sonics have not written.
func (s *Shipper) tail(ctx context.Context, d *messaging.Delivery) (wire.Tail, error) {
	return s.end().tail(ctx, d)
}

// pack returns entries as the records of one message or of its parts, and the end of the topic
// after these are stored.
func (l *loader) pack(entries []wire.Entry) (records []*messaging.Record, ends wire.Tail, err error) {
	messages, ends, err := l.packer.Pack(entries)
	if err != nil {
		return nil, ends, fmt.Errorf("%w: %w", ErrState, err)
	}
	for i := range messages {
		m := &messages[i]
		records = append(records, &messaging.Record{Payload: m.Payload, Properties: m.Header.Properties(), SequenceID: &m.Header.Position})
	}
	return records, ends, nil
}
