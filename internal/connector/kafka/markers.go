package kafka

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/IBM/sarama"
)

// passMarkers moves the committed offset of a claim behind offsets at which no message comes, until
// ctx ends. It looks only when the pipeline has no message of the claim.
//
// Transactions leave such offsets: the markers that end them, and with read_committed their aborted
// messages. Sarama skips them silently. At the end of a partition the committed offset must pass
// them: else the lag never gets to 0, and once retention has deleted them that looks like a gap.
func (m *member) passMarkers(ctx context.Context, c *claimedPartition) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for from := c.nextOffset.Load(); from >= c.offered.Load() && from < c.claim.HighWaterMarkOffset(); {
			end, err := m.endOfMarkers(c, from)
			if err != nil {
				m.source.log.Debug("cannot look for transaction markers", c.fields(err)...)
			}
			if end <= from || ctx.Err() != nil {
				break
			}
			c.mark(end)
			c.nextOffset.CompareAndSwap(from, end)
			from = end
		}
	}
}

// endOfMarkers reads a partition from an offset on, and returns the offset of the first message
// there, or else the end of what it has read.
func (m *member) endOfMarkers(c *claimedPartition, from int64) (int64, error) {
	const maxBytes = 16 << 10 // the first batch comes whole even if it is larger
	broker, err := m.client.Leader(c.topic, c.partition)
	if err != nil {
		return from, err
	}
	isolation := m.client.Config().Consumer.IsolationLevel
	request := &sarama.FetchRequest{Version: 4, MinBytes: 1, MaxBytes: maxBytes, Isolation: isolation}
	request.AddBlock(c.topic, c.partition, from, maxBytes, -1)
	response, err := broker.Fetch(request)
	if err != nil {
		return from, err
	}
	block := response.GetBlock(c.topic, c.partition)
	switch {
	case block == nil:
		return from, sarama.ErrIncompleteResponse
	case !errors.Is(block.Err, sarama.ErrNoError):
		return from, block.Err
	}
	return firstMessage(block, from), nil
}

// firstMessage is the offset of the first message at or behind from that a consumer gets of block,
// or the end of block. A response lists the aborted transactions that it has messages of, each with
// its first offset, and a marker ends its producer's transaction (KIP-98).
func firstMessage(block *sarama.FetchResponseBlock, from int64) int64 {
	transactions := slices.Clone(block.AbortedTransactions)
	slices.SortFunc(transactions, func(a, b *sarama.AbortedTransaction) int { return cmp.Compare(a.FirstOffset, b.FirstOffset) })
	aborted := make(map[int64]bool) // producers whose transaction is aborted
	for _, records := range block.RecordsSet {
		batch := records.RecordBatch
		if batch == nil || batch.PartialTrailingRecord {
			return from // an old format, which has no transactions, or a batch that was not read
		}
		for len(transactions) > 0 && transactions[0].FirstOffset <= batch.LastOffset() {
			aborted[transactions[0].ProducerID] = true
			transactions = transactions[1:]
		}
		switch {
		case batch.Control:
			delete(aborted, batch.ProducerID)
		case batch.IsTransactional && aborted[batch.ProducerID]:
		default:
			for _, r := range batch.Records {
				if offset := batch.FirstOffset + r.OffsetDelta; offset >= from {
					return offset
				}
			}
		}
		from = max(from, batch.LastOffset()+1)
	}
	return from
}
