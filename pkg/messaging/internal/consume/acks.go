package consume

import (
	"context"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/clientquirks"
	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// How completed messages are acknowledged.
//
// Where the subscription delivers a partition to one consumer at a time, everything up to the first
// message that is not completed is acknowledged at once (cumulatively). So whatever ends in
// between, the broker delivers again everything from some place on: each key's newest message comes
// last. One message that is held for long would keep all behind it from being acknowledged. From
// maxUnacknowledged entries on, those behind it are acknowledged one by one.
//
// A cumulative acknowledgement must not include an entry that no handler got. The underlying client
// keeps some entries: chunks of an incomplete message, and corrupted ones. So a partition changes
// to individual acknowledgement, in order, at the first gap between two entries, and at the first
// encrypted or chunked message. A gap before a session's first message, or at the end of a ledger,
// is not noticed.
//
// On Shared and Key_Shared subscriptions entries are acknowledged one by one.

// maxUnacknowledged is how many entries of a partition may wait for the one in front of them.
const maxUnacknowledged = 50_000

// watermark is the last cumulative acknowledgement and its time.
type watermark struct {
	at   record.Place
	sent time.Time
}

const (
	// maxWatermarks is how many of the latest watermarks a partition keeps.
	maxWatermarks = 64
	// watermarkEvery is how far apart in time they are kept, but for the last: one of them is older
	// than ackLanding, however often acknowledgements are sent.
	watermarkEvery = clientquirks.AckLanding / (maxWatermarks / 4)
	// gateTimeout is how long acknowledgements wait for a broker to deliver again what came by an
	// earlier connection.
	gateTimeout = 5 * time.Second
)

// acknowledge is called when an entry is complete, and again when it was delivered again.
func (s *session) acknowledge(e *entry) {
	if e.lost() {
		return // another consumer gets it
	}
	if s.singleConsumer {
		s.flushLater(e.partition)
		return
	}
	now := time.Now().UnixNano()
	e.acked.Store(now)
	s.acks.latest.Store(now)
	s.acknowledgeIndividually(e.source, e.id)
}

// acknowledgeIndividually acknowledges one entry.
func (s *session) acknowledgeIndividually(source pulsar.Consumer, id pulsar.MessageID) {
	if err := source.AckID(id); err != nil {
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
		s.acks.timer = time.AfterFunc(s.ackEvery, s.flushDue)
	case now:
		s.acks.timer.Reset(0)
	case len(s.acks.dirty) == 1:
		s.acks.timer.Reset(s.ackEvery)
	}
}

// flushDue acknowledges complete entries, unless the session ends. Each partition has a goroutine:
// an acknowledgement waits in the underlying client while that connects.
func (s *session) flushDue() {
	s.acks.mu.Lock()
	dirty := s.acks.dirty
	if s.acks.closed {
		dirty = nil
	} else {
		s.acks.dirty = nil
	}
	s.acks.mu.Unlock()
	for p := range dirty {
		if len(dirty) == 1 {
			s.flush(p)
		} else {
			go s.flush(p)
		}
	}
}

// flush acknowledges complete entries of a partition. Entries of an earlier connection wait for
// a time: a broker whose subscription was reset delivers older messages again, and acknowledgements
// from before would undo that.
func (s *session) flush(p *partition) {
	p.dirty.Store(false)
	select {
	case p.acking <- struct{}{}:
		defer func() { <-p.acking }()
	default:
		s.flushAgain(p) // the underlying client is busy connecting
		return
	}
	if s.awaitsRedelivery(p) {
		s.flushAgain(p)
		return
	}
	s.acknowledgeCompleted(p)
}

// acknowledgeCompleted acknowledges a partition's watermark. p.acking is held.
func (s *session) acknowledgeCompleted(p *partition) {
	last, individually := p.advance()
	if last != nil && !last.lost() {
		if err := last.source.AckIDCumulative(last.id); err != nil {
			s.ackFailed.Inc()
		}
	}
	for _, e := range individually {
		s.acknowledgeIndividually(e.source, e.id)
	}
	if len(individually) == 0 || p.individual.Load() {
		return
	}
	if _, ok := s.lines.Allow(); ok {
		s.log.Warn("a message has not been completed for a long time: later messages are acknowledged one by one",
			zap.String("topic", p.topic), zap.Int("entries", len(individually)))
	}
}

// awaitsRedelivery reports whether the broker may yet deliver again what came by a connection
// before the latest. Connections are counted for the session, so that a partition whose own has not
// changed waits, too. p.acking is held.
func (s *session) awaitsRedelivery(p *partition) bool {
	connections := &s.arrivals.connections
	if p.connection.Load() == connections.Current.Load() || connections.Redelivering() {
		p.waitingSince = time.Time{}
		return false
	}
	if p.waitingSince.IsZero() {
		p.waitingSince = time.Now()
	}
	return time.Since(p.waitingSince) < gateTimeout
}

// closeAcks sends the last acknowledgements, behind those under way. Nothing is acknowledged
// afterwards. Entries that wait for a redelivery are acknowledged, too, unless the session failed.
// A partition that is connecting acknowledges nothing more.
func (s *session) closeAcks() {
	s.acks.mu.Lock()
	s.acks.closed = true
	if s.acks.timer != nil {
		s.acks.timer.Stop()
	}
	s.acks.mu.Unlock()
	if !s.singleConsumer {
		s.awaitGathered()
		return
	}
	var flushes sync.WaitGroup
	all := s.failure() == nil
	for _, p := range s.parts {
		flushes.Go(func() {
			p.acking <- struct{}{}
			defer func() { <-p.acking }()
			if all || !s.awaitsRedelivery(p) {
				s.acknowledgeCompleted(p)
			}
		})
	}
	ctx, cancel := context.WithTimeout(context.Background(), lastAcksTimeout)
	defer cancel()
	clientquirks.Within(ctx, flushes.Wait)
}

const (
	// lastAcksTimeout is how long the last acknowledgements may wait for the underlying client.
	lastAcksTimeout = time.Second
	// gatheredTimeout is how long the underlying client needs, once its timer has fired, to hand on
	// the acknowledgements that it has gathered.
	gatheredTimeout = clientquirks.AckLanding
)

// awaitGathered returns when the underlying client holds no acknowledgement that it has gathered.
// The client sends the rest when it closes, but its timer may have taken that before: a consumer
// that closes in between closes first, and the broker ignores what comes afterwards
// (pulsar-client-go v0.21.0 ack_grouping_tracker.go, flush and close). The client does not report
// when it hands the timer's acknowledgements on, so this waits for the time that it takes. With an
// ack_every of more than lastAcksTimeout it does not cover all of that.
func (s *session) awaitGathered() {
	if s.ackMessages <= 1 {
		return // nothing is gathered
	}
	timeout := min(s.ackEvery, lastAcksTimeout) + gatheredTimeout
	left := time.Until(time.Unix(0, s.acks.latest.Load()).Add(timeout))
	<-time.After(min(left, timeout)) // the clock may have been set back
}

// advance takes complete entries from the front of unacked. It returns the entry to
// acknowledge up to, nil when that was done, and those to acknowledge one by one.
func (p *partition) advance() (last *entry, individually []*entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	individual, former, repeat := p.individual.Load(), p.last, p.ackDue
	if len(p.unacked) > maxUnacknowledged {
		individually = p.completedBehind()
	}
	n := 0
	for n < len(p.unacked) && p.unacked[n].uncompleted.Load() == 0 {
		if e := p.unacked[n]; individual && e.acked.Load() == 0 {
			e.acked.Store(time.Now().UnixNano())
			individually = append(individually, e)
		}
		n++
	}
	if n > 0 {
		p.last = p.unacked[n-1]
		p.unacked = p.unacked[n:]
		p.ackDue = true
	}
	if p.ackDue && p.last != nil {
		p.ackDue = false
		last = p.last
		p.noteWatermark(watermark{last.at, time.Now()})
	}
	if len(p.unacked) > maxUnacknowledged {
		p.dropAcked()
	}
	if individual {
		last = nil
		if repeat && former != nil && former.at.Less(p.individualFrom) {
			last = former // nothing is missing before it
		}
	}
	return last, individually
}

// completedBehind returns the completed entries behind one that is not. p.mu is held.
func (p *partition) completedBehind() (behind []*entry) {
	unfinished := false
	for _, e := range p.unacked {
		done := e.uncompleted.Load() == 0
		if done && unfinished && e.acked.Load() == 0 {
			e.acked.Store(time.Now().UnixNano())
			behind = append(behind, e)
		}
		unfinished = unfinished || !done
	}
	return behind
}

// noteWatermark keeps the acknowledged position. p.mu is held.
func (p *partition) noteWatermark(w watermark) {
	if n := len(p.watermarks); n > 1 && w.sent.Sub(p.watermarks[n-2].sent) < watermarkEvery {
		p.watermarks[n-1] = w
		return
	}
	p.watermarks = append(p.watermarks, w)
	if len(p.watermarks) > maxWatermarks {
		p.watermarks = append(p.watermarks[:0], p.watermarks[len(p.watermarks)-maxWatermarks:]...)
	}
}
