package messaging

import "context"

// PublishEntry is what an EntryWriter stores with, for the tests of its receipts.
func (p *Publisher) PublishEntry(ctx context.Context, rs ...*Record) (MessageID, error) {
	return p.publishEntry(ctx, nil, rs...)
}

// SequenceID is the id that an EntryWriter gives an entry, for the tests of what it promises.
func SequenceID(stored, used, position int64) int64 { return sequenceID(stored, used, position) }
