package pulsaradmin

import (
	"context"
	"net/http"
)

// TopicStats is what tests look at in a topic's statistics. Of a partitioned topic it holds the
// sums, and each partition under its full name.
type TopicStats struct {
	MsgInCounter   int64                        `json:"msgInCounter"`
	BytesInCounter int64                        `json:"bytesInCounter"`
	MsgOutCounter  int64                        `json:"msgOutCounter"`
	StorageSize    int64                        `json:"storageSize"`
	BacklogSize    int64                        `json:"backlogSize"`
	Publishers     []PublisherStats             `json:"publishers"`
	Subscriptions  map[string]SubscriptionStats `json:"subscriptions"`
	Replication    map[string]ReplicatorStats   `json:"replication"`
	Partitions     map[string]TopicStats        `json:"partitions"`
}

// PublisherStats describes a connected producer.
type PublisherStats struct {
	ProducerName string  `json:"producerName"`
	ProducerID   int64   `json:"producerId"`
	MsgRateIn    float64 `json:"msgRateIn"`
	Address      string  `json:"address"`
}

// SubscriptionStats describes a subscription, with or without consumers.
type SubscriptionStats struct {
	Type                string          `json:"type"`
	MsgBacklog          int64           `json:"msgBacklog"`
	MsgBacklogNoDelayed int64           `json:"msgBacklogNoDelayed"`
	MsgDelayed          int64           `json:"msgDelayed"`
	UnackedMessages     int64           `json:"unackedMessages"`
	MsgOutCounter       int64           `json:"msgOutCounter"`
	MsgRateRedeliver    float64         `json:"msgRateRedeliver"`
	ActiveConsumerName  string          `json:"activeConsumerName"`
	BlockedOnUnacked    bool            `json:"blockedSubscriptionOnUnackedMsgs"`
	Consumers           []ConsumerStats `json:"consumers"`
}

// ConsumerStats describes a connected consumer.
type ConsumerStats struct {
	ConsumerName     string `json:"consumerName"`
	AvailablePermits int64  `json:"availablePermits"`
	UnackedMessages  int64  `json:"unackedMessages"`
	MsgOutCounter    int64  `json:"msgOutCounter"`
	BlockedOnUnacked bool   `json:"blockedConsumerOnUnackedMsgs"`
	Address          string `json:"address"`
}

// ReplicatorStats describes the outgoing replication to another cluster.
type ReplicatorStats struct {
	Connected          bool    `json:"connected"`
	ReplicationBacklog int64   `json:"replicationBacklog"`
	MsgRateOut         float64 `json:"msgRateOut"`
}

// Stats returns the statistics of a topic, summed over its partitions.
func (a *Client) Stats(ctx context.Context, topic string) (TopicStats, error) {
	n, err := a.Partitions(ctx, topic)
	if err != nil {
		return TopicStats{}, err
	}
	path := TopicPath(topic) + "/stats?getPreciseBacklog=true"
	if n > 0 {
		path = TopicPath(topic) + "/partitioned-stats?perPartition=true&getPreciseBacklog=true"
	}
	var st TopicStats
	err = a.Do(ctx, http.MethodGet, path, nil, &st)
	return st, err
}
