package messaging

import "context"

// PublishEntry is what an EntryWriter stores with, for the tests of its receipts.
func (p *Publisher) PublishEntry(ctx context.Context, rs ...*Record) (MessageID, error) {
	return p.publishEntry(ctx, rs...)
}
