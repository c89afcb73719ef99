package kafka

import (
	"errors"
	"fmt"
	"strings"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// GapError says that messages were deleted from a partition before the group read them.
type GapError struct {
	Topic     string
	Partition int32
	// Committed is the committed offset. The log holds the offsets from Oldest up to, but without,
	// Newest.
	Committed, Oldest, Newest int64
	// Recreated is true when the topic is not the one that the offset was committed for.
	Recreated bool
}

func (e *GapError) Error() string {
	what := "is outside the log"
	if e.Recreated {
		what = "is of a topic that was deleted and created again"
	}
	return fmt.Sprintf("messages of topic %s, partition %d, were deleted before they were read: "+
		"the committed offset %d %s, which now begins at %d and ends before %d",
		e.Topic, e.Partition, e.Committed, what, e.Oldest, e.Newest)
}

// topicIDPrefix comes before a topic's id in the metadata of a committed offset. A topic that was
// deleted and created again may hold other messages at the same offset: only the id tells.
const topicIDPrefix = "topic_id="

// checkGap checks, before anything is read, whether the claim continues at the committed offset. It
// sets c.metadata and c.nextOffset. restart is true when it has set another offset, from which the
// session has to start again.
func (m *member) checkGap(c *claimedPartition) (restart bool, err error) {
	s := m.source
	topics, err := describe(m.client, []string{c.topic})
	if err != nil {
		return false, err
	}
	for _, t := range topics {
		if t.Uuid != (sarama.Uuid{}) { // old brokers give topics no ids
			c.metadata = topicIDPrefix + t.Uuid.String()
		}
	}
	committed, former, err := m.committed(c.topic, c.partition)
	if err != nil {
		return false, err
	}
	oldest, err := m.client.GetOffset(c.topic, c.partition, sarama.OffsetOldest)
	if err != nil {
		return false, err
	}
	newest, err := m.client.GetOffset(c.topic, c.partition, sarama.OffsetNewest)
	if err != nil {
		return false, err
	}
	c.nextOffset.Store(max(committed, oldest))
	gaps := s.gaps.WithLabelValues(c.topic) // the series exists from the start, so that an alert sees the first gap
	s.starts.WithLabelValues(c.topic)
	gap := &GapError{Topic: c.topic, Partition: c.partition, Committed: committed, Oldest: oldest, Newest: newest,
		Recreated: c.metadata != "" && strings.HasPrefix(former, topicIDPrefix) && former != c.metadata}
	switch {
	case committed < 0:
		if newest > oldest {
			s.starts.WithLabelValues(c.topic).Inc()
			if _, logged := m.started.LoadOrStore(c.topic, true); !logged {
				// Nothing tells a new group from one whose offsets Kafka has deleted.
				s.log.Info("partitions without a committed offset are read from the oldest message", zap.String("topic", c.topic))
			}
		}
		return false, nil
	case committed >= oldest && committed <= newest && !gap.Recreated:
		if c.claim.InitialOffset() < 0 {
			// The library found it outside the log, as happens while a leader takes over.
			return false, fmt.Errorf("topic %s, partition %d: the committed offset %d was outside the log for a short time",
				c.topic, c.partition, committed)
		}
		return false, nil
	case s.cfg.OnGap == gapFail:
		m.endSession(gap)
		<-c.session.Context().Done()
		return false, errors.New("stopped because messages were deleted before they were read (on_gap: fail)")
	}
	gaps.Inc()
	s.log.Error("messages were deleted before they were read; continuing from the oldest message", c.fields(gap)...)
	c.nextOffset.Store(oldest)
	// mark alone would keep the offset of a deleted topic that is higher than oldest.
	c.session.ResetOffset(c.topic, c.partition, oldest, c.metadata)
	c.mark(oldest)
	c.session.Commit()
	return c.claim.InitialOffset() >= 0, nil
}

// committed asks the group's coordinator for the committed offset, -1 for none, and its metadata.
func (m *member) committed(topic string, partition int32) (int64, string, error) {
	group := m.source.cfg.Group
	coordinator, err := m.client.Coordinator(group)
	if err != nil {
		return 0, "", err
	}
	partitions := map[string][]int32{topic: {partition}}
	response, err := coordinator.FetchOffset(sarama.NewOffsetFetchRequest(m.client.Config().Version, group, partitions))
	if err != nil {
		return 0, "", err
	}
	block := response.GetBlock(topic, partition)
	switch {
	case block == nil:
		return 0, "", sarama.ErrIncompleteResponse
	case block.Err != sarama.ErrNoError:
		return 0, "", block.Err
	}
	return block.Offset, block.Metadata, nil
}
