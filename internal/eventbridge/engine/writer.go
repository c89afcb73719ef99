package engine

import (
	"context"
	"fmt"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// writer stores copies for an ordered subscriber in one partition of its send topic, each position
// once: see messaging.EntryWriter.
type writer struct{ w *messaging.EntryWriter }

// openWriter waits until no other engine writes to the partition, and finds out what is stored.
func (e *Engine) openWriter(ctx context.Context, s *model.Subscriber, partition int) (topicWriter, error) {
	names, err := e.client.Partitions(ctx, e.topics.Send(s))
	if err != nil {
		return nil, err
	}
	if partition >= len(names) {
		return nil, fmt.Errorf("the send topic of %s has %d partitions, and the bus has more", s.Name, len(names))
	}
	w, err := e.client.EntryWriter(ctx, names[partition], messaging.EntryWriterConfig{
		Name: fmt.Sprintf("eventbridge-%s-%d", s.UID, partition), Label: "eventbridge_ordered",
		Position: storedPosition, Compression: messaging.NoCompression, MaxRecords: groupRecords,
	})
	if err != nil {
		return nil, fmt.Errorf("cannot open the send topic: %w", err)
	}
	return writer{w}, nil
}

func (w writer) put(ctx context.Context, entries []entry) (done, left []entry, err error) {
	stored := w.w.Stored()
	n := 0
	for n < len(entries) && entries[n].position <= stored {
		n++ // stored by this engine before an attempt in doubt, or by the last owner of the partition
	}
	records := make([]*messaging.Record, 0, len(entries)-n)
	for _, e := range entries[n:] {
		records = append(records, e.record)
	}
	if len(records) == 0 {
		return entries, nil, nil
	}
	if err := w.w.Store(ctx, records...); err != nil {
		return entries[:n], entries[n:], fmt.Errorf("cannot store: %w", err)
	}
	return entries, nil, nil
}

func (w writer) close(ctx context.Context) { _ = w.w.Close(ctx) }
