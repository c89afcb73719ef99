package consume

import (
	"errors"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging/internal/record"
)

// What becomes of messages that cannot be handed to a handler. Each is counted in
// aviary_messaging_unreadable_messages_total by its reason, and logged.
//
//   - encrypted: the library has no keys. The message stays in the subscription, unacknowledged,
//     for a consumer that has the key. Messages behind it continue.
//   - chunks: the underlying client gave up a message in chunks, because too many were incomplete
//     at a time, or because the rest did not come within ChunksExpire. In the first case the broker
//     delivers it to the next session, which begins after resubscribeForChunks. In the second
//     case the client has acknowledged the chunks.
//   - corrupted: a checksum is wrong, or what was compressed or batched cannot be taken apart. The
//     underlying client acknowledges the message before it says so: it is lost to the subscription.

// errChunks ends a session whose underlying consumer gave up a message in chunks.
var errChunks = errors.New("a message in chunks was given up")

// noteEncrypted leaves an encrypted message of p in the subscription. The underlying client has not
// told BeforeConsume of it.
func (s *session) noteEncrypted(p *partition, m *pulsar.ConsumerMessage) {
	p.switchToIndividual(record.PlaceOf(m.ID()))
	s.buffered.Add(1<<bufferedShift + weightOf(m))
	s.unreadable.WithLabelValues("encrypted").Inc()
	if _, ok := s.lines.Allow(); ok {
		s.log.Error("a message is encrypted: it stays in the subscription for a consumer that has the key",
			zap.String("topic", m.Topic()), zap.Stringer("message_id", m.ID()))
	}
}

// NoteChunksGivenUp is called with locks of the underlying client held.
func (s *session) NoteChunksGivenUp() {
	s.unreadable.WithLabelValues("chunks").Inc()
	if s.chunksLost.CompareAndSwap(false, true) {
		s.log.Error("the client discarded an incomplete message in chunks; subscribing again soon",
			zap.Stringer("source", s.src), zap.Duration("after", s.resubscribeForChunks))
		time.AfterFunc(s.resubscribeForChunks, func() { s.abort(errChunks) })
	}
}

// NoteCorrupted is called when the underlying client acknowledges a message that it cannot read.
// The logger has its topic and id.
func (s *session) NoteCorrupted(log *zap.Logger) {
	s.unreadable.WithLabelValues("corrupted").Inc()
	if _, ok := s.lines.Allow(); ok {
		log.Error("a corrupted message was acknowledged: it is lost to the subscription")
	}
}
