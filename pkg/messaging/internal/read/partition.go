package read

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/cluster"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"

	rawbackoff "github.com/apache/pulsar-client-go/pulsar/backoff"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/backoff"
)

// partition reads one partition by underlying readers, one after the other.
//
// An underlying reader lives as long as its connection. When the client connects it again in the
// middle of a batch, it continues behind the batch: it sends the broker the entry without the index
// in it (pulsar-client-go v0.21.0 consumer_partition.go, getPreviousMessage and
// convertToMessageIDData). So a reader that is about to connect again is closed, and another begins
// at the position kept here. Messages that the next one repeats are skipped.
type partition struct {
	r     *Reader
	topic string
	index int
	queue int
	log   *zap.Logger

	// Guarded by the reader's lock.
	position  record.MessageID // of the message that Next returned
	unhealthy error            // why it is not read

	// Only run uses the next fields, once it has begun.
	after   record.MessageID // the last message that was handed to Next, or skipped
	since   time.Time        // older messages are skipped
	begun   bool             // a message was not older: no message is skipped any more
	gaps    gaps
	slab    record.Slab
	chunked clientquirks.ChunkedIDs
	quiet   quiet
}

// begin sets the position to begin behind.
func (p *partition) begin(after record.MessageID) { p.position, p.after = after, after }

// beginFrom sets the position to begin at. The partition ends at end.
func (p *partition) beginFrom(from record.Position, end partitionEnd) {
	switch kind, id, _ := record.KindOf(from); kind {
	case record.LatestKind:
		p.begin(end.id)
	case record.MessageKind:
		before := record.EntryOf(id)
		before.Number--
		p.begin(record.StartingAt(record.NewMessageID(before, p.index, 0, 1), record.FirstOf(id)))
	case record.TimeKind:
		p.since = p.r.cfg.since()
		if end.published.Before(p.since) {
			p.begin(end.id) // nothing is as young
		}
	default:
	}
}

// run reads until the reader ends.
func (p *partition) run() {
	var b backoff.Backoff
	defer p.note(nil)
	for p.r.ctx.Err() == nil {
		s, err := cluster.CallWithTimeout(p.r.ctx, p.r.parent.Cluster, p.subscribe, (*session).close)
		if err == nil {
			p.note(nil)
			var n int
			n, err = p.readFrom(s)
			p.r.running.Go(s.close)
			if n > 0 {
				b.Reset()
			}
		}
		if p.r.ctx.Err() != nil {
			return
		}
		if clientquirks.Permanent(err) || errors.Is(err, record.ErrEncrypted) {
			p.r.end(err)
			return
		}
		if errors.Is(err, errLongQueue) || errors.Is(err, errSought) {
			continue
		}
		p.r.metrics.resubscribe(err)
		if errors.Is(err, errSilent) {
			p.log.Warn("reading starts again at its last position", zap.Stringer("position", p.after),
				zap.Int("queue", p.quiet.queueLength(p.queue)), zap.Error(err))
			continue
		}
		p.note(err)
		if !b.Started() {
			p.log.Info("reading is interrupted and will continue at its last position", zap.Stringer("position", p.after), zap.Error(err))
		}
		backoff.Sleep(p.r.ctx, b.Next())
	}
}

// note keeps err as the unhealthy of p; nil ends it.
func (p *partition) note(err error) {
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	switch {
	case p.unhealthy == nil && err != nil:
		p.r.metrics.interrupted.Inc()
	case p.unhealthy != nil && err == nil:
		p.r.metrics.interrupted.Dec()
	}
	p.unhealthy = err
}

// readFrom hands on what s delivers, and returns how much that was and why s ended.
func (p *partition) readFrom(s *session) (n int, err error) {
	p.gaps.beginBehind(placeBehind(p.after))
	p.quiet.begin(p.after)
	s.waitFor(p.quiet.wait)
	for {
		m, err := s.next()
		if errors.Is(err, context.DeadlineExceeded) && s.ctx.Err() == nil {
			if p.starved() {
				return n, errSilent
			}
			s.waitFor(p.quiet.wait)
			continue
		}
		if err != nil {
			return n, err
		}
		id := record.ReceivedID(m.ID(), p.index, &p.chunked)
		if m.GetEncryptionContext() != nil {
			return n, fmt.Errorf("%w: %s", record.ErrEncrypted, id)
		}
		position := id
		if !p.r.cfg.ReadCompacted {
			p.gaps.note(id)
			position = p.gaps.position(id)
		}
		p.quiet.received(id)
		if !p.after.IsZero() && id.Compare(p.after) <= 0 {
			continue
		}
		p.after = position
		if !p.begun && m.PublishTime().Before(p.since) {
			if s.sought {
				return n, errSought
			}
			continue
		}
		p.begun = true
		read := readMessage{p: p, id: position}
		if !p.r.cfg.ReadCompacted || !record.LeftByCompaction(m) {
			d := p.slab.Delivery(m)
			d.ID, d.Partition = id, p.index
			read.d = d
		}
		long := p.quiet.shortens(len(p.gaps.gaps) > 0)
		if long {
			p.r.running.Go(s.close)
		}
		select {
		case p.r.read <- read:
			n++
			switch {
			case long:
				return n, errLongQueue
			case s.sought:
				return n, errSought
			}
		case <-p.r.ctx.Done():
			return n, context.Cause(p.r.ctx)
		}
	}
}

// placeBehind is the entry to begin behind; known is false when that is the beginning. The rest of
// a batch that was read in part comes with the whole batch.
func placeBehind(id record.MessageID) (at record.EntryPlace, known bool) {
	if id.IsZero() || id.Deduplicated() {
		return record.EntryPlace{}, false
	}
	at = record.EntryOf(id)
	index, size := record.BatchOf(id)
	switch first := record.FirstOf(id); {
	case !first.IsZero():
		at = record.EntryPlace{Ledger: first.Ledger, Number: first.Number - 1}
	case at.Number > 0 && index != size-1:
		at.Number--
	}
	return at, true
}

func (p *partition) start() pulsar.MessageID {
	at, known := placeBehind(p.after)
	if !known {
		return pulsar.EarliestMessageID()
	}
	return pulsar.NewMessageID(at.Ledger, at.Entry(), -1, 0)
}

// session is one underlying reader, from its making until it is closed, or about to
// connect again.
type session struct {
	raw  pulsar.Reader
	ctx  context.Context // ends with it
	end  context.CancelFunc
	over atomic.Bool
	// reconnects is how many times it may connect again and continue: once after a seek.
	reconnects atomic.Int32
	reading    chan struct{} // holds an element while next reads
	closing    sync.Once
	sought     bool // it has found where to begin: it ends with its first message

	waiting     context.Context // ends when next is to wait no longer
	stopWaiting context.CancelFunc
}

var errReconnects = errors.New("connection lost")

// subscribe makes an underlying reader at the position. It can hang.
func (p *partition) subscribe() (*session, error) {
	s := &session{reading: make(chan struct{}, 1)}
	s.ctx, s.end = context.WithCancel(p.r.ctx)
	queue := p.queue
	// After silent sessions the queue is longer than a seek allows: it reads from the beginning.
	if p.after.IsZero() && !p.since.IsZero() && p.quiet.again == 0 {
		older, err := p.beginsOlder(s.ctx)
		if err != nil {
			s.end()
			return nil, err
		}
		s.sought = older
	}
	if s.sought {
		queue = 1 // see beginsOlder
		s.reconnects.Store(1)
	}
	raw, err := p.r.parent.Consumers.CreateReader(pulsar.ReaderOptions{
		Topic:             p.topic,
		StartMessageID:    p.start(),
		ReadCompacted:     p.r.cfg.ReadCompacted,
		ReceiverQueueSize: p.quiet.queueLength(queue),

		ExpireTimeOfIncompleteChunk: clientquirks.ChunksExpire,
		Decryption:                  clientquirks.ShowEncrypted(),
		BackoffPolicyFunc: func() rawbackoff.Policy {
			s.reconnecting()
			return clientquirks.NewBackoff()
		},
	})
	if err != nil {
		s.end()
		return nil, err
	}
	s.raw = raw
	if s.sought {
		// It began at the topic's beginning. Whatever goes wrong with the seek and the
		// connecting that follows it, messages are too old rather than missing.
		if err := raw.SeekByTime(p.since); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// reconnecting is called by the underlying client when it begins to connect again, before it
// asks for messages. It waits for a next in progress, which touches what connecting looks
// at; not for long, since that may itself wait for the goroutine that we are called in.
func (s *session) reconnecting() {
	if s.reconnects.Add(-1) >= 0 {
		return
	}
	s.over.Store(true)
	s.end()
	timer := time.NewTimer(time.Second)
	defer timer.Stop()
	select {
	case s.reading <- struct{}{}:
		<-s.reading
	case <-timer.C:
	}
}

// waitFor has next wait no longer than until d from now. It is for the goroutine that calls next.
func (s *session) waitFor(d time.Duration) {
	if s.stopWaiting != nil {
		s.stopWaiting()
	}
	s.waiting, s.stopWaiting = context.WithTimeout(s.ctx, d)
}

// next returns the next message, or context.DeadlineExceeded when it waited for long. A message
// that comes when the reader is about to connect again does not count: it may be behind a gap.
func (s *session) next() (pulsar.Message, error) {
	s.reading <- struct{}{}
	defer func() { <-s.reading }()
	if s.over.Load() {
		return nil, errReconnects
	}
	m, err := s.raw.Next(s.waiting)
	if s.over.Load() {
		return nil, errReconnects
	}
	return m, err
}

func (s *session) close() {
	s.end()
	s.closing.Do(s.raw.Close)
}
