package kafka

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// member is this process in the consumer group. Rebalancing is cooperative: it does not interrupt
// partitions that stay with this process.
type member struct {
	source     *Source
	client     sarama.Client
	group      sarama.ConsumerGroup
	pipelines  *pipeline.Set
	missing    error // topics that do not exist
	endSession context.CancelCauseFunc
	started    sync.Map // topics with a log line about partitions without a committed offset
}

// Setup is called when the group has been joined.
func (m *member) Setup(sarama.ConsumerGroupSession) error {
	m.source.report(m.missing)
	return nil
}

// Cleanup is called when every claim has ended.
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// claimedPartition is a partition that the group has assigned to this process.
type claimedPartition struct {
	session       sarama.ConsumerGroupSession
	claim         sarama.ConsumerGroupClaim
	topic         string
	partition     int32
	metadata      string       // of committed offsets: the topic's id, see gap.go
	logAppendTime bool         // the broker sets the timestamps
	nextOffset    atomic.Int64 // the offset behind the last message that the pipeline has committed
	offered       atomic.Int64 // the offset behind the last message that was offered to the pipeline
}

// mark sets the offset that the session commits next. It never lowers it.
func (c *claimedPartition) mark(offset int64) {
	c.session.MarkOffset(c.topic, c.partition, offset, c.metadata)
}

// fields name the partition in log lines.
func (c *claimedPartition) fields(err error) []zap.Field {
	return []zap.Field{zap.String("topic", c.topic), zap.Int32("partition", c.partition), zap.Error(err)}
}

// ConsumeClaim reads one partition until it is taken away or the session ends, in three steps that
// never overlap:
//
//  1. Messages go through the fetchBuffer into the pipeline, whose watermark becomes the marked
//     offset.
//  2. The pipeline takes no more messages. It has DrainTimeout to finish those that it has.
//  3. The pipeline is closed, so that nothing more is marked, and the marked offset is committed.
//     Then the group may give the partition to another member.
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	s := m.source
	c := &claimedPartition{session: session, claim: claim, topic: claim.Topic(), partition: claim.Partition()}
	if restart, err := m.checkGap(c); err != nil || restart {
		return err
	}
	c.logAppendTime = s.logAppendTime(m.client, c.topic)
	s.mu.Lock()
	s.claims[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.claims, c)
		s.mu.Unlock()
	}()

	l := m.pipelines.Open(fmt.Sprintf("%s-%d", c.topic, c.partition), func(position int64) error {
		c.mark(position + 1)
		c.nextOffset.Store(position + 1)
		return nil
	})
	partition := map[string][]int32{c.topic: {c.partition}}
	share := func() int64 {
		_, inFlight := m.pipelines.Bounds()
		s.mu.Lock()
		defer s.mu.Unlock()
		return max(s.cfg.bufferSize(inFlight)/max(int64(len(s.claims)), 1), 64<<10)
	}
	q := newFetchBuffer(share, func() { m.group.Pause(partition) }, func() { m.group.Resume(partition) })
	offering, stop := context.WithCancel(session.Context())
	var offerer, markers sync.WaitGroup
	offerer.Go(func() { s.offerMessages(offering, q, l, c) })
	markers.Go(func() { m.passMarkers(offering, c) })

	fillBuffer(session.Context(), claim.Messages(), q)
	stop()
	offerer.Wait()
	q.close()

	drain, cancel := context.WithTimeout(s.drainCtx, s.cfg.DrainTimeout)
	defer cancel() // the session's context has ended
	if err := l.Close(drain); err != nil {
		s.log.Info("partition released with messages in flight; its next owner sends them again", c.fields(err)...)
	}
	markers.Wait()
	session.Commit()
	return nil
}

// fillBuffer moves fetched messages into q without blocking: all partitions of a broker share one
// connection, so a partition whose messages are not taken would block the others.
func fillBuffer(ctx context.Context, messages <-chan *sarama.ConsumerMessage, q *fetchBuffer) {
	batch := make([]*sarama.ConsumerMessage, 0, 256)
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				return // taken away
			}
			batch = append(batch[:0], m)
		case <-ctx.Done():
			return
		}
		for range min(len(messages), cap(batch)-1) { // nobody else receives from messages
			batch = append(batch, <-messages)
		}
		q.add(batch)
	}
}

// offerMessages takes messages from q and offers them to the pipeline, in order, until ctx ends or
// the pipeline is closed.
func (s *Source) offerMessages(ctx context.Context, q *fetchBuffer, l *pipeline.Pipeline, c *claimedPartition) {
	batch := make([]*sarama.ConsumerMessage, 0, 256)
	for {
		batch = q.take(ctx, batch)
		if len(batch) == 0 {
			return
		}
		now := time.Now()
		for _, m := range batch {
			c.offered.Store(m.Offset + 1)
			if err := l.Offer(ctx, s.message(m, c, now), m.Offset); err != nil {
				return // closed, or to be closed
			}
		}
		q.release(batch)
	}
}

// message converts m. It does not copy key and value: the library does not use them again.
func (s *Source) message(m *sarama.ConsumerMessage, c *claimedPartition, now time.Time) *message.Message {
	var headers []message.Header
	if len(m.Headers) > 0 {
		headers = make([]message.Header, len(m.Headers))
		for i, h := range m.Headers {
			headers[i] = message.Header{Name: string(h.Key), Value: h.Value}
		}
	}
	id := strings.TrimPrefix(c.metadata, topicIDPrefix)
	made := message.FromKafka(m.Key, m.Value, headers, m.Timestamp)
	made.From = message.From{
		System: system, Cluster: s.cfg.Cluster, Topic: m.Topic, TopicID: id, Partition: m.Partition, Offset: m.Offset, Received: now,
	}
	if c.logAppendTime {
		made.From.Stored = m.Timestamp
	}
	made.SetOrigin(id)
	return made
}

// logAppendTime reports whether the brokers set the timestamps of a topic. It asks them once. When
// that fails, as without the permission, it returns false, and asks again the next time.
func (s *Source) logAppendTime(client sarama.Client, topic string) bool {
	s.mu.Lock()
	known, ok := s.logAppendTimes[topic]
	s.mu.Unlock()
	if ok {
		return known
	}
	const key = "message.timestamp.type"
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return false
	}
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{key}}
	results, err := admin.DescribeConfigs([]*sarama.ConfigResource{&resource}, sarama.DescribeConfigsOptions{})
	if err != nil || len(results) != 1 || results[0].ErrorCode != 0 {
		return false
	}
	found := slices.ContainsFunc(results[0].Configs, func(e sarama.ConfigEntry) bool { return e.Name == key && e.Value == "LogAppendTime" })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.logAppendTimes[topic] = found
	return found
}
