package kafka

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/aviaryhq/aviary/internal/connector/pipeline"
)

// newClient makes a client that connects when it is used.
func (s *Sink) newClient() (*kgo.Client, error) {
	return s.cfg.client(
		// RequestTimeout bounds a request with its answer. After a third of it the broker itself
		// answers that the request timed out.
		kgo.ProduceRequestTimeout(s.cfg.RequestTimeout/3),
		kgo.RequestTimeoutOverhead(s.cfg.RequestTimeout-s.cfg.RequestTimeout/3),
		kgo.ConnIdleTimeout(5*time.Minute),
		kgo.MetadataMaxAge(30*time.Second), // the sink uses new partitions after that time
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.WithHooks(connectionHook{s}),

		// Idempotent with acknowledgements of all in-sync replicas, as the library is by itself.
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerBatchCompression(codecs()[s.cfg.Compression]),
		kgo.ProducerLinger(s.cfg.Linger),
		kgo.ProducerBatchMaxBytes(int32(s.cfg.MaxMessageBytes)),
		kgo.MaxBufferedRecords(math.MaxInt32), // the pipelines bound the records in flight
		kgo.RecordRetries(s.cfg.Retries),
		kgo.UnknownTopicRetries(2), // then records fail
		kgo.RecordPartitioner(s.cfg.partitioner()),
	)
}

func codecs() map[string]kgo.CompressionCodec {
	return map[string]kgo.CompressionCodec{
		"none": kgo.NoCompression(), "gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(),
		"lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
	}
}

// partitioner chooses as Kafka's Java client does: by the key's murmur2 hash, and for messages
// without a key a partition for each batch (KIP-480); or it takes the source's number, and -1 where
// the topic has no such partition.
func (c SinkConfig) partitioner() kgo.Partitioner {
	if c.Partition != partitionSource {
		return kgo.StickyKeyPartitioner(nil)
	}
	return kgo.BasicConsistentPartitioner(func(string) func(*kgo.Record, int) int {
		return func(r *kgo.Record, partitions int) int {
			if int(r.Partition) >= partitions {
				r.Partition = -1
			}
			return int(r.Partition)
		}
	})
}

// connectionHook reports failed connections.
type connectionHook struct{ sink *Sink }

// OnBrokerConnect implements kgo.HookBrokerConnect.
func (c connectionHook) OnBrokerConnect(_ kgo.BrokerMetadata, _ time.Duration, _ net.Conn, err error) {
	if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, kgo.ErrClientClosed) {
		return
	}
	c.sink.report(err)
	select {
	case c.sink.connectionFailed <- struct{}{}:
	default:
	}
}

// sizeOf is the largest size of a record in a separate batch, before compression.
func sizeOf(r *kgo.Record) int64 {
	const (
		batch  = 61 + 16       // the batch's header (Kafka protocol, record batch), and what requests put around it
		record = 1 + 5*5 + 2*5 // attributes and the varints of lengths, deltas and counts
		header = 2 * 5
	)
	n := batch + record + len(r.Key) + len(r.Value)
	for i := range r.Headers {
		n += header + len(r.Headers[i].Key) + len(r.Headers[i].Value)
	}
	return int64(n)
}

// create creates a topic unless it exists. With validateOnly the brokers only check whether they
// could.
func (c SinkConfig) create(ctx context.Context, client *kgo.Client, topic string, validateOnly bool) error {
	wanted := kmsg.NewCreateTopicsRequestTopic()
	wanted.Topic, wanted.NumPartitions, wanted.ReplicationFactor = topic, c.CreatePartitions, -1 // the brokers' default
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics, request.ValidateOnly = append(request.Topics, wanted), validateOnly
	request.TimeoutMillis = int32(c.RequestTimeout.Milliseconds())
	response, err := request.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	for _, created := range response.Topics {
		err := kerr.ErrorForCode(created.ErrorCode)
		switch {
		case err == nil, errors.Is(err, kerr.TopicAlreadyExists):
		case created.ErrorMessage != nil:
			return fmt.Errorf("%w: %s", err, *created.ErrorMessage)
		default:
			return err
		}
	}
	return nil
}

// checkPartition refuses a message whose partition the topic does not have. If the partition has
// been added since, the error is not final.
func (s *Sink) checkPartition(o *outgoing) error {
	s.sendLock.RLock()
	client := s.client
	s.sendLock.RUnlock()
	if client == nil {
		return errStopped
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.RequestTimeout)
	defer cancel()
	partitions, err := countPartitions(ctx, client, o.record.Topic)
	if err != nil {
		return err
	}
	err = fmt.Errorf("topic %s has %d partitions, the message comes from partition %d", o.record.Topic, partitions, o.partition)
	if int(o.partition) < partitions {
		client.ForceMetadataRefresh()
		return err
	}
	return pipeline.Refuse(invalidPartition, err)
}
