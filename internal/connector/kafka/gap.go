package kafka

import (
	"errors"
	"fmt"
	"strings"

	"github.com/IBM/sarama"
	"go.uber.org/zap"
)

// GapError says that messages are gone from a partition that have not been read.
type GapError struct {
	Topic     string
	Partition int32
	// Committed is the offset to go on from, Oldest and Newest are the log's: it holds those from Oldest up to, and without, Newest.
	Committed, Oldest, Newest int64
	// Recreated is true when the topic is not the one that the offset was committed for.
	Recreated bool
}

// Error says what happened, for people.
func (e *GapError) Error() string {
	what := "is outside the log"
	if e.Recreated {
		what = "is of a topic that was deleted and made again"
	}
	return fmt.Sprintf("messages of topic %s, partition %d, are gone unread: the committed offset %d %s, whose messages are %d up to %d",
		e.Topic, e.Partition, e.Committed, what, e.Oldest, e.Newest)
}

// topicIDMark comes before a topic's id in the metadata of a committed offset. Another topic of the same name may well hold messages at the offset: only
// its id tells that they are others.
const topicIDMark = "topic_id="

// checkGap finds out whether the claim goes on where the group left off, before anything is read. It returns what to store with the offsets. With
// restart, the session has to start again from an offset that was set here.
func (m *member) checkGap(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim, c *claimed) (id string, restart bool, err error) {
	s := m.source
	id, err = m.topicID(c.topic)
	if err != nil {
		return "", false, err
	}
	committed, former, err := m.committed(c.topic, c.partition)
	if err != nil {
		return "", false, err
	}
	oldest, err := m.client.GetOffset(c.topic, c.partition, sarama.OffsetOldest)
	if err != nil {
		return "", false, err
	}
	newest, err := m.client.GetOffset(c.topic, c.partition, sarama.OffsetNewest)
	if err != nil {
		return "", false, err
	}
	c.next.Store(max(committed, oldest))
	gaps := s.gaps.WithLabelValues(c.topic) // also where there are none, so that an alert sees the first one
	gap := &GapError{Topic: c.topic, Partition: c.partition, Committed: committed, Oldest: oldest, Newest: newest,
		Recreated: id != "" && strings.HasPrefix(former, topicIDMark) && former != id}
	switch {
	case committed < 0:
		return id, false, nil // nothing was read before
	case committed >= oldest && committed <= newest && !gap.Recreated:
		if claim.InitialOffset() < 0 {
			// The library found it outside a moment ago, as happens while a leader takes over.
			return "", false, fmt.Errorf("topic %s, partition %d: the committed offset %d was outside the log for a moment", c.topic, c.partition, committed)
		}
		return id, false, nil
	case s.cfg.OnGap == gapFail:
		m.end(gap)
		<-session.Context().Done()
		return "", false, errors.New("stopped at a gap")
	}
	gaps.Inc()
	s.log.Error("messages are gone unread, going on from the oldest", zap.Error(gap), zap.String("topic", c.topic), zap.Int32("partition", c.partition))
	c.next.Store(oldest)
	// Marks only ascend, and those of the topic that is gone may be higher than any to come.
	session.ResetOffset(c.topic, c.partition, oldest, id)
	session.MarkOffset(c.topic, c.partition, oldest, id)
	session.Commit()
	return id, claim.InitialOffset() >= 0, nil
}

// committed asks the group's coordinator what was committed, and with what metadata; -1 for nothing.
func (m *member) committed(topic string, partition int32) (int64, string, error) {
	group := m.source.cfg.Group
	coordinator, err := m.client.Coordinator(group)
	if err != nil {
		return 0, "", err
	}
	response, err := coordinator.FetchOffset(sarama.NewOffsetFetchRequest(m.client.Config().Version, group, map[string][]int32{topic: {partition}}))
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

// topicID is empty where brokers give topics no ids.
func (m *member) topicID(topic string) (string, error) {
	broker := m.client.LeastLoadedBroker()
	if broker == nil {
		return "", sarama.ErrOutOfBrokers
	}
	response, err := broker.GetMetadata(sarama.NewMetadataRequest(m.client.Config().Version, []string{topic}))
	if err != nil {
		return "", err
	}
	for _, t := range response.Topics {
		if t.Name == topic && t.Uuid != (sarama.Uuid{}) {
			return topicIDMark + t.Uuid.String(), nil
		}
	}
	return "", nil
}
