package kafka

import (
	"context"
	"fmt"
	"math"
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
	endSession context.CancelCauseFunc
}

// Setup is called when the group has been joined.
func (m *member) Setup(sarama.ConsumerGroupSession) error {
	m.source.reportHealthy()
	return nil
}

// Cleanup is called when every claim has ended.
func (m *member) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// claimedPartition is a partition that the group has assigned to this process.
type claimedPartition struct {
	topic      string
	partition  int32
	nextOffset atomic.Int64 // the offset behind the last message that the pipeline has committed
	offered    atomic.Int64 // the offset behind the last message that was offered to the pipeline
}

// ConsumeClaim reads one partition until it is taken away or the session ends, in three steps that
// never overlap:
//
//  1. Messages go into the fetchBuffer, from there into the pipeline. The pipeline's watermark becomes the marked offset.
//  2. The pipeline takes no more messages. It has DrainTimeout to finish those that it has.
//  3. The pipeline is closed, so that nothing more is marked, and the marked offset is committed. Then ConsumeClaim returns, and the group may
//     give the partition to another member.
func (m *member) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	s := m.source
	c := &claimedPartition{topic: claim.Topic(), partition: claim.Partition()}
	id, restart, err := m.checkGap(session, claim, c)
	if err != nil || restart {
		return err
	}
	s.mu.Lock()
	s.claims[c] = struct{}{}
	s.claimCount.Store(int64(len(s.claims)))
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.claims, c)
		s.claimCount.Store(int64(len(s.claims)))
		s.mu.Unlock()
	}()

	l := m.pipelines.Open(fmt.Sprintf("%s-%d", c.topic, c.partition), func(position int64) error {
		session.MarkOffset(c.topic, c.partition, position+1, id)
		c.nextOffset.Store(position + 1)
		return nil
	})
	partition := map[string][]int32{c.topic: {c.partition}}
	share := func() int64 {
		_, inFlight := m.pipelines.Bounds()
		return max(s.cfg.bufferSize(inFlight)/max(s.claimCount.Load(), 1), 64<<10)
	}
	q := newFetchBuffer(share, func() { m.group.Pause(partition) }, func() { m.group.Resume(partition) })
	offering, stop := context.WithCancel(session.Context())
	var offerer sync.WaitGroup
	setting := s.settingOf(m.client, c.topic)
	setting.id = strings.TrimPrefix(id, topicIDPrefix)
	offerer.Go(func() { s.offerMessages(offering, q, l, setting, c) })
	var markers sync.WaitGroup
	markers.Go(func() { m.passMarkers(offering, session, claim, c, id) })

	fillBuffer(session.Context(), claim.Messages(), q)
	stop()
	offerer.Wait()
	q.close()

	drain, cancel := context.WithTimeout(s.drainCtx, s.cfg.DrainTimeout)
	defer cancel() // the session's context has ended
	if err := l.Close(drain); err != nil {
		s.log.Info("partition released with messages in flight; its next owner sends them again",
			zap.String("topic", c.topic), zap.Int32("partition", c.partition), zap.Error(err))
	}
	markers.Wait()
	session.Commit()
	return nil
}

// fillBuffer moves fetched messages into q. q keeps its bound by pausing the partition, and add does
// not block: all partitions of a broker share one connection, so a partition whose messages are not
// taken would block the others.
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
		// Messages that are available already are added under one lock.
		for more := true; more && len(batch) < cap(batch); {
			select {
			case m, ok := <-messages:
				if more = ok; ok {
					batch = append(batch, m)
				}
			default:
				more = false
			}
		}
		q.add(batch)
	}
}

// offerMessages takes messages from q and offers them to the pipeline, in order, until ctx ends or the
// pipeline is closed.
func (s *Source) offerMessages(ctx context.Context, q *fetchBuffer, l *pipeline.Pipeline, setting topicSetting, c *claimedPartition) {
	batch := make([]*sarama.ConsumerMessage, 0, 256)
	for {
		batch = q.take(ctx, batch)
		if len(batch) == 0 {
			return
		}
		now := time.Now()
		for _, m := range batch {
			c.offered.Store(m.Offset + 1)
			if err := l.Offer(ctx, s.message(m, setting, now), m.Offset); err != nil {
				return // closed, or to be closed
			}
		}
		q.release(batch)
	}
}

// message is m in Pigeonhole's form. Key and value are not copied: the library does not use them
// again.
func (s *Source) message(m *sarama.ConsumerMessage, setting topicSetting, now time.Time) *message.Message {
	var headers []message.Header
	if len(m.Headers) > 0 {
		headers = make([]message.Header, len(m.Headers))
		for i, h := range m.Headers {
			headers[i] = message.Header{Name: string(h.Key), Value: h.Value}
		}
	}
	made := message.FromKafka(m.Key, m.Value, headers, m.Timestamp)
	made.From = message.From{System: system, Cluster: s.cfg.Cluster, Topic: m.Topic, TopicID: setting.id, Partition: m.Partition, Offset: m.Offset, Received: now}
	if setting.logAppendTime {
		made.From.Stored = m.Timestamp
	}
	made.SetOrigin(setting.id)
	return made
}

// topicSetting holds the settings of a topic that the source needs.
type topicSetting struct {
	logAppendTime bool   // the broker sets the timestamps
	id            string // empty where brokers give none
}

// settingOf asks the brokers for the topic's setting once. When that fails, as for a client without
// the permission, it returns the default, and asks again the next time.
func (s *Source) settingOf(client sarama.Client, topic string) topicSetting {
	s.mu.Lock()
	setting, ok := s.topicSettings[topic]
	s.mu.Unlock()
	if ok {
		return setting
	}
	admin, err := sarama.NewClusterAdminFromClient(client)
	if err != nil {
		return setting
	}
	resource := sarama.ConfigResource{Type: sarama.TopicResource, Name: topic, ConfigNames: []string{"message.timestamp.type"}}
	results, err := admin.DescribeConfigs([]*sarama.ConfigResource{&resource}, sarama.DescribeConfigsOptions{})
	if err != nil {
		return setting
	}
	for _, result := range results {
		for _, entry := range result.Configs {
			setting.logAppendTime = setting.logAppendTime || (entry.Name == "message.timestamp.type" && entry.Value == "LogAppendTime")
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.topicSettings) < math.MaxUint16 {
		s.topicSettings[topic] = setting
	}
	return setting
}
