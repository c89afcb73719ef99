package engine

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// topicWriter writes to an open send topic.
type topicWriter interface {
	// put stores copies. It returns the stored ones as done, and those that may not be stored as
	// left, with the reason. After an error the writer cannot be used any more.
	put(ctx context.Context, entries []pendingCopy) (done, left []pendingCopy, err error)
	close(ctx context.Context)
}

// openSendTopic opens the send topic of a subscriber; for an ordered one, a partition of it. It
// creates the topic if somebody has deleted it, but not for a bus that has ended: that bus, and its
// subscribers, may be deleted.
func (b *bus) openSendTopic(ctx context.Context, s *model.Subscriber, partition int) (topicWriter, error) {
	open := func() (topicWriter, error) { return b.engine.openPublisher(ctx, s) }
	if s.Order.Ordered() {
		open = func() (topicWriter, error) { return b.engine.openWriter(ctx, s, partition) }
	}
	w, err := open()
	if !errors.Is(err, messaging.ErrTopicNotFound) || b.running.Err() != nil {
		return w, err
	}
	if err := b.engine.maker.MakeSubscriber(ctx, b.newest.Load(), s); err != nil {
		return nil, fmt.Errorf("cannot make the topics of %s: %w", s.Name, err)
	}
	return open()
}

// publisher stores copies at least once. Other engines may publish to the topic at the same time.
type publisher struct{ p *messaging.Publisher }

func (e *Engine) openPublisher(ctx context.Context, s *model.Subscriber) (topicWriter, error) {
	profile := messaging.Business()
	profile.Name, profile.Compression = "eventbridge", messaging.NoCompression // LZ4 takes half a megabyte for each topic
	profile.MaxPendingRecords, profile.BatchRecords = groupRecords, groupRecords
	p, err := e.client.Publisher(ctx, e.topics.Send(s), profile)
	if err != nil {
		return nil, fmt.Errorf("cannot open the send topic: %w", err)
	}
	return publisher{p}, nil
}

func (p publisher) put(ctx context.Context, entries []pendingCopy) (done, left []pendingCopy, err error) {
	outcomes := make([]error, len(entries))
	var pending sync.WaitGroup
	pending.Add(len(entries))
	for i := range entries {
		p.p.PublishAsync(ctx, entries[i].record, func(_ messaging.MessageID, err error) {
			outcomes[i] = err
			pending.Done()
		})
	}
	stop := context.AfterFunc(ctx, func() { p.close(ctx) }) // then everything gets its outcome at once
	pending.Wait()
	stop()
	for i, outcome := range outcomes {
		if outcome == nil {
			done = append(done, entries[i])
			continue
		}
		left = append(left, entries[i])
		if err == nil {
			err = fmt.Errorf("cannot store: %w", outcome)
		}
	}
	return done, left, err
}

func (p publisher) close(ctx context.Context) { _ = p.p.Close(ctx) }

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

// put omits copies that are stored: before an attempt in doubt, by the last owner of the
// partition, or, if the broker delivers an event again, behind the queue's earlier copies.
func (w writer) put(ctx context.Context, entries []pendingCopy) (done, left []pendingCopy, err error) {
	records := make([]*messaging.Record, 0, len(entries))
	newest := w.w.Stored()
	for _, e := range entries {
		if e.position > newest {
			records, newest = append(records, e.record), e.position
		}
	}
	if len(records) == 0 {
		return entries, nil, nil
	}
	if err := w.w.Store(ctx, records...); err != nil {
		return nil, entries, fmt.Errorf("cannot store: %w", err)
	}
	return entries, nil, nil
}

func (w writer) close(ctx context.Context) { _ = w.w.Close(ctx) }
