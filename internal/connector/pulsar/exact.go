package pulsar

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Effectively once: each message of a source partition is stored once in its partition of the
// destination, even if this process, the broker or connections fail.
//
// A [messaging.EntryWriter] is the only producer of a partition of the destination. It knows from
// the provenance of the partition's last message which offsets are stored: the writer drops messages
// up to there and stores those behind. When it is not known whether an entry was stored, the writer
// opens another EntryWriter, which reads the last message again. See EntryWriter and ADR 8.

// maxExactIdle is the longest idle_timeout under effectively_once.
const maxExactIdle = 5 * time.Second

type exactKey struct {
	topic     string
	partition int32
}

// Resume returns the highest stored offset of from's topic in the partition of topic that has from's
// number; ok is false if none is stored. It waits until this sink is the partition's only producer.
// The sink completes messages up to the offset with nil. Resume returns an error when the partition
// holds messages of another topic. EffectivelyOnce must be set.
func (s *Sink) Resume(ctx context.Context, topic string, from *message.From) (offset int64, ok bool, err error) {
	if err := s.await(ctx, s.ready); err != nil {
		return 0, false, err
	}
	source := sourceOf(from)
	w, err := s.writer(exactKey{topic, from.Partition}, source)
	if err != nil {
		return 0, false, err
	}
	defer w.users.release()
	if w.source != source {
		return 0, false, w.otherSourceError(source)
	}
	for {
		w.mu.Lock()
		phase, changed, stored, refuse := w.phase, w.changed, w.stored, w.refusal
		w.mu.Unlock()
		switch phase {
		case phaseOpen:
			return stored, stored >= 0, nil
		case phaseRefusing, phaseEnded:
			return 0, false, refuse
		case phaseOpening:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if why := w.healthError(); why != nil {
				return 0, false, fmt.Errorf("%w (%w)", ctx.Err(), why)
			}
			return 0, false, ctx.Err()
		}
	}
}

// Release closes the unused producer of topic's partition, instead of once it is idle. Then another
// process that takes the partition over need not wait. Call it when the pipeline that sent to the
// partition is closed.
func (s *Sink) Release(topic string, partition int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.writers[exactKey{topic, partition}]; w != nil && w.users.free() {
		s.closeExactWriter(w)
	}
}

// closeExactWriter closes a writer without users, in a goroutine. s.mu is held.
func (s *Sink) closeExactWriter(w *writer) {
	delete(s.writers, w.key)
	s.closeLater(w.close)
}

// Oversized reports whether m may be larger than max_message_bytes as it is sent. The sink refuses
// such a message even when a later offset is stored: its dead letter may not be stored yet.
func (s *Sink) Oversized(m *message.Message) bool {
	limit := int64(s.cfg.MaxMessageBytes)
	return m.Size() > limit/maxGrowth && largestEntry(m) > limit
}

// maxGrowth bounds how many times larger largestEntry(m) is, so that small messages need no
// conversion: a header's byte takes up to 3 bytes, and is written twice.
const maxGrowth = 8

// largestEntry is the largest size of m as a separate entry. The underlying client writes key and
// properties twice, for the message and for its batch. Compression can make random bytes longer, LZ4
// by 1/255.
func largestEntry(m *message.Message) int64 {
	const fixed, perProperty = 1 << 10, 16
	key, payload, properties := m.Pulsar()
	head := len(key) + len(m.OrderingKey)
	for name, value := range properties {
		head += len(name) + len(value) + perProperty
	}
	size := int64(2*head + len(payload) + fixed)
	return size + size/255
}

// sendExactly is Send under effectively_once. It does not block: pipelines bound the messages in
// flight.
func (s *Sink) sendExactly(to string, m *message.Message, done func(error)) {
	switch {
	case m.From.Offset < 0 || m.From.Partition < 0:
		done(pipeline.Refuse("no_offset", errors.New("effectively_once needs a source with partitions and offsets")))
		return
	case s.Oversized(m):
		done(pipeline.Refuse("too_large",
			fmt.Errorf("up to %d bytes are more than max_message_bytes (%s)", largestEntry(m), s.cfg.MaxMessageBytes)))
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
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.writers[key]
	if w == nil {
		if s.stopped() {
			return nil, errStopped
		}
		if !messaging.ValidTopic(key.topic) {
			return nil, badTopic(key.topic)
		}
		w = &writer{
			sink: s, key: key, source: source, stored: -1, highestTaken: -1, maxRecords: s.cfg.Profile.BatchRecords,
			users: usage{opened: time.Now()},
			log:   s.options.Log.With(zap.String("topic", key.topic), zap.Int32("partition", key.partition)),
			ended: make(chan struct{}), wake: make(chan struct{}, 1), changed: make(chan struct{}),
		}
		w.killCtx, w.kill = context.WithCancel(s.openCtx)
		w.ctx, w.cancel = context.WithCancel(w.killCtx)
		s.writers[key] = w
		go w.run()
	}
	w.users.acquire()
	return w, nil
}

// sourceTopic is the topic that a writer's messages come from. Its offsets cannot be compared with
// those of another topic, not even of one with the same name that was created again or is in another
// cluster.
type sourceTopic struct {
	system, cluster, topic string
	id                     string // empty where the brokers have none, or it was not known when a message was stored
}

func sourceOf(f *message.From) sourceTopic {
	return sourceTopic{f.System, f.Cluster, f.Topic, f.TopicID}
}

// same reports whether both are one topic, as far as their fields tell. The id comes before the
// cluster's name, which is only a configured name and may change.
func (s sourceTopic) same(other sourceTopic) bool {
	switch {
	case s.topic != other.topic:
		return false
	case s.id != "" && other.id != "":
		return s.id == other.id
	case s.cluster != "" && other.cluster != "":
		return s.system == other.system && s.cluster == other.cluster
	default:
		return true
	}
}

// String is the topic for people.
func (s sourceTopic) String() string {
	name := message.PlaceName(s.system, s.cluster, s.topic)
	if s.id != "" {
		name += " (id " + s.id + ")"
	}
	return name
}
