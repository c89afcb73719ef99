package load

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

const (
	// messagesPerTransaction is the setting that makes the client open its transaction coordinators.
	messagesPerTransaction = "messagesPerTransaction"
	// transactionTimeout ends a transaction at the broker. The client keeps a goroutine as long.
	transactionTimeout = 20 * time.Second
)

// transactions is pulsar-client-go with transactions. Each producer has one at a time, since a
// batch of the client has one transaction: the workload's producersPerTopic are the transactions
// in parallel. Settings: messagesPerTransaction, and abortRatio from 0 (the default) to 1.
type transactions struct {
	*client
	messages   int
	abortRatio float64
	consumed   bool // messages have numbers

	mu              sync.Mutex
	began, last     time.Time
	ended, aborted  int
	abortedMessages int
	ends            *hdrhistogram.Histogram
}

func newTransactions(ctx context.Context, cluster messaging.Config, t Turn) (Driver, error) {
	d := &transactions{consumed: len(t.Subscriptions) > 0, began: time.Now(), ends: newHistogram()}
	var err error
	if d.messages, err = strconv.Atoi(t.Side.Settings[messagesPerTransaction]); err != nil || d.messages < 1 {
		return nil, fmt.Errorf("settings: %s: must be a number above 0", messagesPerTransaction)
	}
	if ratio, ok := t.Side.Settings["abortRatio"]; ok {
		if d.abortRatio, err = strconv.ParseFloat(ratio, 64); err != nil || d.abortRatio < 0 || d.abortRatio > 1 {
			return nil, fmt.Errorf("settings: abortRatio: %q: must be from 0 to 1", ratio)
		}
	}
	plain, err := newClient(ctx, cluster, t)
	if err != nil {
		return nil, err
	}
	d.client = plain.(*client)
	return d, nil
}

// Producer opens a producer that one goroutine uses at a time. It reports the messages of a
// transaction when it is committed or has failed, and does not report those of one that it aborts.
func (d *transactions) Producer(ctx context.Context, topic string, report func(time.Time, error)) (Producer, error) {
	plain, err := d.client.Producer(ctx, topic, report)
	if err != nil {
		return nil, err
	}
	return &transactionProducer{clientProducer: plain.(*clientProducer), driver: d}, nil
}

// Figures are those of all transactions, of the warm-up too. The time to commit or abort begins
// with the flush of the transaction's messages.
func (d *transactions) Figures() map[string]float64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	f := map[string]float64{
		"transactions_s": float64(d.ended) / d.last.Sub(d.began).Seconds(), "aborted_transactions": float64(d.aborted), "aborted_messages": float64(d.abortedMessages),
	}
	percentiles("commit", d.ends, f)
	return f
}

// note counts a transaction that ended in so much time.
func (d *transactions) note(took time.Duration, messages int, abort bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.last = time.Now()
	d.ended++
	_ = d.ends.RecordValue(min(took, longest).Microseconds()) // within the histogram's bounds
	if abort {
		d.aborted++
		d.abortedMessages += messages
	}
}

type transactionProducer struct {
	*clientProducer
	driver *transactions
	open   pulsar.Transaction // nil: the next message begins one
	abort  bool               // the open one
	begun  int
	dues   []time.Time // of the messages in the open one
}

// Send sends within the open transaction. The last message of one also waits for its end.
func (p *transactionProducer) Send(ctx context.Context, m Message, due time.Time) {
	if p.open == nil {
		if err := p.begin(); err != nil {
			p.report(due, err)
			return
		}
	}
	if p.abort && p.driver.consumed {
		markAborted(m.Payload)
	}
	p.dues = append(p.dues, due)
	// A message that fails makes the commit fail.
	p.SendAsync(ctx, &pulsar.ProducerMessage{Key: m.Key, Payload: m.Payload, Transaction: p.open}, nil)
	if len(p.dues) == p.driver.messages {
		p.end(ctx)
	}
}

func (p *transactionProducer) begin() (err error) {
	p.open, err = p.driver.client.client.NewTransaction(transactionTimeout)
	p.abort = int(float64(p.begun+1)*p.driver.abortRatio) > int(float64(p.begun)*p.driver.abortRatio)
	p.begun++
	return err
}

// end commits or aborts the open transaction.
func (p *transactionProducer) end(ctx context.Context) {
	began := time.Now()
	finish := p.open.Commit
	if p.abort {
		finish = p.open.Abort
	}
	err := p.FlushWithCtx(ctx)
	if err == nil {
		err = finish(ctx)
	}
	if err == nil {
		p.driver.note(time.Since(began), len(p.dues), p.abort)
	}
	for _, due := range p.dues {
		if err != nil || !p.abort {
			p.report(due, err)
		}
	}
	p.open, p.dues = nil, p.dues[:0]
}

// Call is not possible: the acknowledgement of one message says nothing before the commit.
func (p *transactionProducer) Call(context.Context, Message) error {
	return fmt.Errorf("callers: %w by the driver transactions", errors.ErrUnsupported)
}

// Flush ends the open transaction.
func (p *transactionProducer) Flush(ctx context.Context) error {
	if p.open != nil {
		p.end(ctx)
	}
	return nil
}
