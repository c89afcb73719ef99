package messaging

import (
	"time"

	"go.uber.org/zap"
)

// How what is completed is acknowledged.
//
// Where the subscription delivers a partition to one consumer at a time, everything up to the first
// message that is not completed is acknowledged at once (cumulatively). So whatever ends in
// between, the broker delivers again everything from some place on: each key's newest message comes
// last. One message that is held for long would keep all behind it from being acknowledged. From
// maxUnacknowledged entries on, those behind it are acknowledged one by one.
//
// On Shared and Key_Shared subscriptions entries are acknowledged one by one.

// maxUnacknowledged is how many entries of a partition may wait for the one in front of them.
const maxUnacknowledged = 50_000

// watermark is what was acknowledged cumulatively, and when.
type watermark struct {
	at   position
	sent time.Time
}

// maxWatermarks is how many of the latest watermarks a partition keeps: those of some seconds.
const maxWatermarks = 64

// acknowledge is called when an entry is complete, and again when it was delivered again.
func (s *session) acknowledge(e *entry) {
	if e.lost() {
		return // another consumer gets it
	}
	if s.sole {
		s.flushLater(e.partition)
		return
	}
	e.acked.Store(time.Now().UnixNano())
	if err := e.source.AckID(e.id); err != nil {
		s.ackFailed.Inc()
	}
}

// flushLater has p's watermark acknowledged within ackEvery, or at once when much is completed.
func (s *session) flushLater(p *partition) {
	now := p.completed.Add(1)%int64(s.ackMessages) == 0
	if p.dirty.Swap(true) && !now {
		return
	}
	s.schedule(p, now)
}

// flushAgain has p's watermark acknowledged ackEvery from now.
func (s *session) flushAgain(p *partition) {
	p.dirty.Store(true)
	s.schedule(p, false)
}

func (s *session) schedule(p *partition, now bool) {
	s.acks.mu.Lock()
	defer s.acks.mu.Unlock()
	if s.acks.dirty == nil {
		s.acks.dirty = make(map[*partition]struct{})
	}
	s.acks.dirty[p] = struct{}{}
	switch {
	case s.acks.closed:
	case s.acks.timer == nil:
		s.acks.timer = time.AfterFunc(s.ackEvery, s.flushAcks)
	case now:
		s.acks.timer.Reset(0)
	case len(s.acks.dirty) == 1:
		s.acks.timer.Reset(s.ackEvery)
	}
}

// flushAcks acknowledges what is complete.
func (s *session) flushAcks() {
	s.acks.mu.Lock()
	dirty := s.acks.dirty
	s.acks.dirty = nil
	s.acks.mu.Unlock()
	for p := range dirty {
		p.dirty.Store(false)
		s.flush(p)
	}
}

// flush acknowledges p's watermark. What came by an earlier connection waits until the broker has
// begun to deliver again what it is going to: one that has lost its position delivers older
// messages again, and must deliver all behind them, too.
func (s *session) flush(p *partition) {
	if !p.acking.TryLock() {
		s.flushAgain(p) // the underlying client is busy connecting
		return
	}
	defer p.acking.Unlock()
	connections := &s.arrivals.connections
	if p.connection.Load() != connections.current.Load() && !connections.settled() && !p.crowded() {
		s.flushAgain(p)
		return
	}
	last, behind := p.advance()
	if last != nil && !last.lost() {
		if err := last.source.AckIDCumulative(last.id); err != nil {
			s.ackFailed.Inc()
		}
	}
	for _, e := range behind {
		if err := e.source.AckID(e.id); err != nil {
			s.ackFailed.Inc()
		}
	}
	if len(behind) == 0 {
		return
	}
	if _, ok := s.lines.Allow(); ok {
		s.log.Warn("a message is not completed for long: those behind it are acknowledged one by one",
			zap.String("topic", p.topic), zap.Int("entries", len(behind)))
	}
}

// crowded reports whether more waits to be acknowledged than should.
func (p *partition) crowded() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.live) > maxUnacknowledged
}

// closeAcks sends the last acknowledgements. Nothing is acknowledged afterwards.
func (s *session) closeAcks() {
	s.acks.mu.Lock()
	s.acks.closed = true
	if s.acks.timer != nil {
		s.acks.timer.Stop()
	}
	s.acks.mu.Unlock()
	s.flushAcks()
}

// advance takes what is complete from the front of what is live. It returns the entry to
// acknowledge up to, nil when that was done, and those to acknowledge one by one.
func (p *partition) advance() (last *entry, behind []*entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for n < len(p.live) && p.live[n].left.Load() == 0 {
		n++
	}
	if n > 0 {
		p.last = p.live[n-1]
		p.live = p.live[n:]
		p.again = true
	}
	if p.again && p.last != nil {
		p.again = false
		last = p.last
		p.watermarks = append(p.watermarks, watermark{last.at, time.Now()})
		if len(p.watermarks) > maxWatermarks {
			p.watermarks = append(p.watermarks[:0], p.watermarks[len(p.watermarks)-maxWatermarks:]...)
		}
	}
	if len(p.live) > maxUnacknowledged {
		for _, e := range p.live {
			if e.left.Load() == 0 && e.acked.Load() == 0 {
				e.acked.Store(time.Now().UnixNano())
				behind = append(behind, e)
			}
		}
		p.dropAcked()
	}
	return last, behind
}
