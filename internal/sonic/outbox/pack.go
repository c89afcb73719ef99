package outbox

import (
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/message"
	"github.com/aviaryhq/aviary/internal/sonic/topic"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// tail returns the end of a topic whose last message is d; nil: the topic is empty. It skips
// messages at the end that this zone's Sonics have not written.
func (s *Shipper) tail(ctx context.Context, d *messaging.Delivery) (message.Tail, error) {
	h, err := topic.Last(ctx, s.client, d, s.cfg.Zone, s.cfg.Shard, func(d *messaging.Delivery, err error) {
		s.log.Error("skipped a foreign message", zap.Stringer("message", d.ID), zap.String("topic", d.Topic), zap.Error(err))
	})
	switch {
	case err != nil:
		return message.Tail{}, err
	case h == nil:
		return message.Tail{Position: -1}, nil
	}
	t := message.Tail{Last: h.Last, Count: h.Count, Position: h.Position, Epoch: h.Epoch}
	if h.Part < h.Parts {
		// The remaining parts are not stored. The loader makes the same parts again, and the broker
		// drops those that it has already stored.
		t.Last = h.Prev
	}
	return t, nil
}

// pack returns entries as the records of one message or of its parts, and the end of the topic
// after these are stored.
func (l *loader) pack(entries []message.Entry) (records []*messaging.Record, ends message.Tail, err error) {
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
