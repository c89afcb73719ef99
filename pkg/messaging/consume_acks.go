package messaging

import (
	"context"
	"errors"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/backoff"
)

// Acknowledgements are sent for many entries at once, and the broker confirms each such request.
// Only what it has confirmed is forgotten here. A request that a broken connection takes along is
// sent again by the next.

// acknowledge has e acknowledged with the partition's next request.
func (s *session) acknowledge(e *entry) {
	if e.confirmed.Load() || e.lost() || e.acking.Swap(true) {
		return
	}
	p := e.partition
	p.acks.mu.Lock()
	p.acks.ready = append(p.acks.ready, e)
	full := len(p.acks.ready) >= s.ackMessages && !p.acks.sending
	p.acks.sending = p.acks.sending || full
	first := !p.acks.dirty
	p.acks.dirty = true
	p.acks.mu.Unlock()
	if full {
		s.startSender(p)
	}
	if first {
		s.flushLater(p)
	}
}

// flushLater has p's acknowledgements sent within ackEvery.
func (s *session) flushLater(p *partition) {
	s.acks.mu.Lock()
	defer s.acks.mu.Unlock()
	s.acks.dirty = append(s.acks.dirty, p)
	switch {
	case len(s.acks.dirty) > 1 || s.acks.closed:
	case s.acks.timer == nil:
		s.acks.timer = time.AfterFunc(s.ackEvery, s.flushAcks)
	default:
		s.acks.timer.Reset(s.ackEvery)
	}
}

// flushAcks sends what is ready.
func (s *session) flushAcks() {
	s.acks.mu.Lock()
	dirty := s.acks.dirty
	s.acks.dirty = nil
	s.acks.mu.Unlock()
	for _, p := range dirty {
		p.acks.mu.Lock()
		p.acks.dirty = false
		send := !p.acks.sending && len(p.acks.ready) > 0
		p.acks.flush = p.acks.sending
		p.acks.sending = p.acks.sending || send
		p.acks.mu.Unlock()
		if send {
			s.startSender(p)
		}
	}
}

func (s *session) startSender(p *partition) {
	s.acks.mu.Lock()
	defer s.acks.mu.Unlock()
	if !s.acks.closed {
		s.acks.senders.Go(p.sendAcks)
	}
}

// closeAcks sends the last acknowledgements, and waits for their confirmation until ctx ends.
// Nothing is acknowledged afterwards.
func (s *session) closeAcks(ctx context.Context) {
	s.flushAcks()
	s.acks.mu.Lock()
	s.acks.closed = true
	if s.acks.timer != nil {
		s.acks.timer.Stop()
	}
	s.acks.mu.Unlock()
	within(ctx, s.acks.senders.Wait)
	s.cancel()
}

// sendAcks sends the partition's acknowledgements. One goroutine at a time does so: what becomes
// ready meanwhile is gathered for the next request.
func (p *partition) sendAcks() {
	var pause backoff.Backoff
	s := p.session
	for {
		p.acks.mu.Lock()
		batch, ids := p.nextAcks()
		p.acks.flush = len(p.acks.ready) > 0
		p.acks.mu.Unlock()
		if len(batch) > 0 {
			if err := batch[0].source.AckIDList(ids); err != nil {
				s.noteAckFailure(len(batch), err)
				p.acks.mu.Lock()
				p.acks.ready = append(batch, p.acks.ready...)
				p.acks.mu.Unlock()
				if s.life.Err() != nil || s.over() || !backoff.Sleep(s.life, pause.Next()) {
					return // what is not confirmed is delivered again
				}
				continue
			}
			pause.Reset()
			confirmation := p.arrivals.confirm()
			for _, e := range batch {
				e.confirm = confirmation
				e.confirmed.Store(true)
			}
			p.confirmed.Add(int64(len(batch)))
		}
		p.acks.mu.Lock()
		if len(p.acks.ready) == 0 || len(p.acks.ready) < s.ackMessages && !p.acks.flush {
			p.acks.sending = false
			p.acks.mu.Unlock()
			return
		}
		p.acks.mu.Unlock()
	}
}

// nextAcks takes what can go into one request out of what is ready. acks.mu is held.
//
// Where messages of a batch are acknowledged one by one, a request says of each entry which of its
// messages are left, as one copy of it knows. Two copies of an entry do not go into one request.
func (p *partition) nextAcks() (batch []*entry, ids []pulsar.MessageID) {
	ready := p.acks.ready
	p.acks.ready = nil
	ids = make([]pulsar.MessageID, 0, len(ready))
	var copies map[position]uint32
	if p.session.perMessage {
		copies = make(map[position]uint32)
	}
	batch = ready[:0]
	for _, e := range ready {
		if e.lost() {
			continue
		}
		if copies != nil {
			at := position{ledger: e.at.ledger, entry: e.at.entry}
			if other, known := copies[at]; known && other != e.copies {
				p.acks.ready = append(p.acks.ready, e)
				continue
			}
			copies[at] = e.copies
		}
		batch, ids = append(batch, e), append(ids, e.id)
	}
	return batch, ids
}

// noteAckFailure counts acknowledgements that the broker has not confirmed.
func (s *session) noteAckFailure(entries int, err error) {
	s.ackFailed.Add(float64(entries))
	var of pulsar.AckError
	if errors.As(err, &of) {
		for _, reason := range of {
			err = reason // one for all of them
		}
	}
	if _, ok := s.lines.Allow(); ok {
		s.log.Debug("acknowledgement not confirmed, sent again", zap.Int("entries", entries), zap.Error(err))
	}
}
