package engine

import (
	"context"
	"fmt"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// publisher stores copies at least once. Other engines may publish to the topic at the same time.
type publisher struct{ p *messaging.Publisher }

func (e *Engine) openPublisher(ctx context.Context, s *model.Subscriber) (topicWriter, error) {
	p, err := e.client.Publisher(ctx, e.topics.Send(s), profile())
	if err != nil {
		return nil, fmt.Errorf("cannot open the send topic: %w", err)
	}
	return publisher{p}, nil
}

// profile is Business for one group at a time and without compression, so that a thousand
// publishers are small.
func profile() messaging.Profile {
	p := messaging.Business()
	p.Name, p.Compression = "eventbridge", messaging.NoCompression
	p.MaxPendingRecords, p.BatchRecords = groupRecords, groupRecords
	return p
}

func (p publisher) put(ctx context.Context, entries []entry) (done, left []entry, err error) {
	outcomes := make(chan outcome, len(entries))
	for i := range entries {
		p.p.PublishAsync(ctx, entries[i].record, func(_ messaging.MessageID, err error) { outcomes <- outcome{i, err} })
	}
	ended := ctx.Done()
	for range entries {
		var o outcome
		select {
		case o = <-outcomes:
		case <-ended:
			ended = nil
			go p.close(ctx) // everything gets its outcome at once
			o = <-outcomes
		}
		if o.err == nil {
			done = append(done, entries[o.index])
			continue
		}
		left = append(left, entries[o.index])
		if err == nil {
			err = fmt.Errorf("cannot store: %w", o.err)
		}
	}
	return done, left, err
}

type outcome struct {
	index int
	err   error
}

func (p publisher) close(ctx context.Context) { _ = p.p.Close(ctx) }
