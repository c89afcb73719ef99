package pulsar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/lane"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Effectively once: each message of a source partition is stored once in its partition
// of the destination, whatever ends in between: this process, the broker, connections.
//
// A partition of the destination is written by a [messaging.EntryWriter], which owns it alone
// and knows from its last message's provenance which offsets are stored. A writer drops what it is
// sent up to there, and goes on behind it: what it is sent gathers while one entry is under way.
// Whenever there is doubt about an entry the library's writer is closed and another opened,
// which finds out again. See there, and ADR 8, for what has to hold and what makes it hold.
//
// An offset is compared with others of the same topic only. A source topic that is
// deleted and made anew begins at 0 again, and one of another cluster has offsets of its
// own: the topic's id tells them apart, and what does not fit is refused. See sourceTopic.

// exactIdle is the longest idle_timeout under effectively_once.
const exactIdle = 5 * time.Second

type exactKey struct {
	topic     string
	partition int32
}

// Resume returns the highest offset of from's topic that the partition of topic with from's number is known to hold, ok false for none, from the moment
// on in which nobody but this sink can write there. A source may go on behind it: what it sends up to there is recognised as stored and answered with
// nil. A partition that holds messages of another topic is refused.
func (s *Sink) Resume(ctx context.Context, topic string, from *message.From) (offset int64, ok bool, err error) {
	if s.cfg.Guarantee != effectivelyOnce {
		return 0, false, errors.New("the guarantee is not effectively_once")
	}
	if err := s.await(ctx); err != nil {
		return 0, false, err
	}
	source := sourceOf(from)
	w, err := s.writer(exactKey{topic, from.Partition}, source)
	if err != nil {
		return 0, false, err
	}
	defer w.users.leave()
	if w.source != source {
		return 0, false, w.takenBy(source)
	}
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
	w, err := s.writer(exactKey{to, m.From.Partition}, sourceOf(&m.From))
	if err != nil {
		done(err)
		return
	}
	w.send(m, done)
}

// writer returns the writer of a partition, opening it when needed, and counts the
// caller as a user.
func (s *Sink) writer(key exactKey, source sourceTopic) (*writer, error) {
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
