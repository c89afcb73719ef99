package pulsar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
	"github.com/aviaryhq/aviary/internal/pigeonhole/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Effectively once: each message of a source partition is stored once in its partition
// of the destination, whatever ends in between: this process, the broker, connections.
//
// The destination itself says what is stored. A partition is written by one producer at
// a time, in the order of the source's offsets, so the offset in the last stored
// message's provenance says it all: what is up to it is stored, what is behind it is
// not. A writer opens its producer, reads that message, drops what it is sent up to
// there, and goes on behind it. Whenever it does not know what became of messages that
// it sent, it does the same again.
//
// What has to hold for that, and what makes it hold:
//
//  1. Nobody else writes between our reading and our writing. The producer is exclusive
//     and is open before the reading: a broker has no other then, and refuses to let a
//     fenced one back in.
//
//  2. What is stored has no gaps. Brokers take whatever id is above the last one, and
//     clients send again, in their own time, what a broken connection left: with several
//     entries under way a later one can be taken where an earlier one was not, and then
//     the earlier one is dropped for a duplicate (pulsar-client-go v0.21.0 does that: a
//     producer that is closed while it connects anew withdraws what waits to be
//     written, one by one, while the rest is being written; and the request to
//     open a producer again overtakes what waits for the same connection). So a writer
//     has one entry under way at a time, and gathers the next meanwhile: an entry is
//     stored whole or not at all. See [messaging.Publisher.PublishEntry].
//
//  3. Nothing that was sent before lands after our reading. When a process is killed its
//     connection ends, the broker drops its producer at once, and lets ours in, while an
//     entry of the old one may still be on its way to the bookies: it is not the last
//     message yet, and will be stored after we looked. Waiting a while would make that
//     unlikely. Deduplication makes it impossible: all producers of a source topic have
//     the same name, and an entry's sequence id is the highest of its offsets, so the
//     broker knows the highest offset that it has pushed towards the bookies, and the
//     highest that is stored. A writer's first message goes alone. If it was pushed by a
//     predecessor and is not stored, the broker answers that it does not know yet, for
//     which the client connects again and repeats; if it is stored, that it is a
//     duplicate, and the writer looks again at what is stored. Once it is answered
//     with a place of its own, nothing older can come any more: what is pushed later is
//     stored later.
//
//  4. Nothing is stored twice when the client sends an entry again by itself:
//     deduplication drops it. Brokers recover its state with the topic, before
//     producers connect.
//
//  5. A lost producer is not replaced underneath, but reported (WaitForOwnership), and closed
//     before another is opened. A receipt that names no place behind the last one is not
//     believed.
//
// Without deduplication on the broker 3 and 4 do not hold: a connection that breaks can
// store what was under way twice, and nothing here can see it. After the last message
// was removed by retention only deduplication's state is left, which brokers forget
// after hours without a producer (brokerDeduplicationProducerInactivityTimeoutMinutes).
//
// An offset is compared with others of the same topic only. A source topic that is
// deleted and made anew begins at 0 again, and would be taken for stored: the source's
// gap detection is what notices that.

// exactIdle is the longest idle_timeout under effectively_once.
const exactIdle = 5 * time.Second

type exactKey struct {
	topic     string
	partition int32
}

// Resume returns the highest offset of the topic source that topic's partition is known to hold, ok false for none, from the moment on in which
// nobody but this sink can write there. A source may go on behind it: what it sends up to there is recognised as stored and answered with nil.
func (s *Sink) Resume(ctx context.Context, topic string, partition int32, source string) (offset int64, ok bool, err error) {
	if s.cfg.Guarantee != effectivelyOnce {
		return 0, false, errors.New("the guarantee is not effectively_once")
	}
	if err := s.await(ctx); err != nil {
		return 0, false, err
	}
	w, err := s.writer(exactKey{topic, partition}, source)
	if err != nil {
		return 0, false, err
	}
	defer w.users.leave()
	for {
		w.mu.Lock()
		phase, changed, stored, refuse := w.phase, w.changed, w.stored, w.refuse
		w.mu.Unlock()
		switch phase {
		case phaseOpen:
			return stored, stored >= 0, nil
		case phaseRefusing:
			return 0, false, refuse
		case phaseEnded:
			return 0, false, ErrStopped
		case phaseOpening:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, false, w.explain(ctx.Err())
		}
	}
}

// Release closes the producers of topic's partition, "" for all topics, which otherwise happens once they are idle. Another process that takes the
// partition over need not wait then. Call it when the lane that sent to it is closed.
func (s *Sink) Release(topic string, partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, w := range s.exact {
		if key.partition == partition && (topic == "" || key.topic == topic) && w.users.free() {
			s.release(w)
		}
	}
}

// release closes a writer without users. s.mu is held.
func (s *Sink) release(w *writer) {
	delete(s.exact, w.key)
	s.closers.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.life), s.cfg.CloseTimeout)
		defer cancel()
		w.close(ctx)
	})
}

// Oversized reports whether m is larger than max_message_bytes allows. Such a message is refused, also when what is behind it is stored: whoever
// refused it before may have ended before its dead letter was kept.
func (s *Sink) Oversized(m *message.Message) bool { return m.Size() > int64(s.cfg.MaxMessageBytes) }

// sendExactly is Send under effectively_once. It does not wait for room: a lane's window is bounded.
func (s *Sink) sendExactly(to string, m *message.Message, done func(error)) {
	switch {
	case m.From.Offset < 0 || m.From.Partition < 0:
		done(lane.Refuse("no_offset", errors.New("effectively_once needs a source with partitions and offsets")))
		return
	case s.Oversized(m):
		done(lane.Refuse("too_large", fmt.Errorf("%d bytes are more than max_message_bytes (%s)", m.Size(), s.cfg.MaxMessageBytes)))
		return
	}
	w, err := s.writer(exactKey{to, m.From.Partition}, m.From.Topic)
	if err != nil {
		done(err)
		return
	}
	w.send(m, done)
}

// writer returns the writer of a partition, opening it when needed, and counts the
// caller as a user.
func (s *Sink) writer(key exactKey, source string) (*writer, error) {
	s.mu.RLock()
	w, closed := s.exact[key], s.closed
	if w != nil {
		w.users.enter()
	}
	s.mu.RUnlock()
	switch {
	case closed:
		if w != nil {
			w.users.leave()
		}
		return nil, ErrStopped
	case w != nil:
		return w, nil
	case !messaging.ValidTopic(key.topic):
		return nil, lane.Refuse("bad_topic", fmt.Errorf("%q cannot be a topic of Pulsar", key.topic))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, ErrStopped
	}
	w = s.exact[key]
	if w == nil {
		w = &writer{
			sink: s, key: key, source: source, stored: -1, high: -1, limit: s.cfg.Profile.BatchRecords,
			log:   s.o.Log.With(zap.String("topic", key.topic), zap.Int32("partition", key.partition)),
			ended: make(chan struct{}), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		}
		w.hard, w.kill = context.WithCancel(s.life)
		w.ctx, w.cancel = context.WithCancel(w.hard)
		w.users.used(time.Now())
		s.exact[key] = w
		go w.run()
	}
	w.users.enter()
	return w, nil
}
