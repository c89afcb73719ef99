package integration

import (
	"bytes"
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/klauspost/compress/snappy"
	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale"
	"github.com/aviaryhq/aviary/test/stack"
)

// TestNightingalePackedIsCompleteAndInOrder: every sample is on the topic once, a
// series is on one partition, and its samples are in order.
func TestNightingalePackedIsCompleteAndInOrder(t *testing.T) {
	pulsar := stack.Pulsar(t)
	const partitions, senders, rounds, series = 4, 8, 30, 200
	topic := pulsar.Topic(t, pulsar.Namespace(t), partitions)
	s := startNightingale(t, pulsar.URL(), topic, func(c *nightingale.Config) {
		c.Format, c.MessageBytes = "packed", 4<<10 // many messages for a request
	})
	s.awaitReady(t)
	var wg sync.WaitGroup
	for sender := range senders {
		wg.Go(func() {
			for round := range rounds {
				status, answer, _, err := s.send(batchOf(sender, series, int64(round)))
				assert.NoError(t, err)
				assert.Equal(t, http.StatusNoContent, status, answer)
			}
		})
	}
	wg.Wait()

	next := map[string]int64{}
	partition := map[string]string{}
	used := map[string]bool{}
	samples, messages := 0, 0
	for _, m := range readTopic(t, pulsar.URL(), topic) {
		var req prompb.WriteRequest
		require.NoError(t, req.Unmarshal(m.payload))
		assert.LessOrEqual(t, len(m.payload), 4<<10)
		used[m.key] = true
		messages++
		for _, ts := range req.Timeseries {
			id := fmt.Sprint(ts.Labels)
			for _, v := range ts.Samples {
				require.Equal(t, next[id], v.Timestamp, id)
				next[id]++
				samples++
			}
			if partition[id] == "" {
				partition[id] = m.key
			}
			require.Equal(t, partition[id], m.key, "one series, one partition")
		}
	}
	assert.Equal(t, senders*rounds*series, samples)
	assert.Len(t, next, senders*series)
	assert.Len(t, used, partitions)
	assert.Less(t, messages, samples/10)
}

// TestNightingaleProtobuf: one TimeSeries per message, keyed by its series.
func TestNightingaleProtobuf(t *testing.T) {
	pulsar := stack.Pulsar(t)
	topic := pulsar.Topic(t, pulsar.Namespace(t), 2)
	s := startNightingale(t, pulsar.URL(), topic, func(c *nightingale.Config) { c.Format = "protobuf" })
	s.awaitReady(t)
	status, answer, _, err := s.send(batchOf(1, 50, 7))
	require.NoError(t, err)
	require.Equal(t, http.StatusNoContent, status, answer)
	keys := map[string]bool{}
	for _, m := range readTopic(t, pulsar.URL(), topic) {
		var ts prompb.TimeSeries
		require.NoError(t, ts.Unmarshal(m.payload))
		assert.Equal(t, []prompb.Sample{{Timestamp: 7, Value: 7}}, ts.Samples)
		keys[m.key] = true
	}
	assert.Len(t, keys, 50)
}

// TestNightingaleTopicsByTemplate: series are on the topics that tenant and label
// name, up to the bound, and nothing is lost beyond it.
func TestNightingaleTopicsByTemplate(t *testing.T) {
	for _, format := range []string{"json", "packed"} {
		t.Run(format, func(t *testing.T) {
			pulsar := stack.Pulsar(t)
			namespace := pulsar.Namespace(t)
			// The bound holds three: those of two senders and the overflow.
			at := func(name string) string { return "persistent://" + namespace + "/" + name }
			s := startNightingale(t, pulsar.URL(), at("sender-{label.sender}"), func(c *nightingale.Config) {
				c.Format, c.Topics.MaxTopics, c.Topics.OverflowTopic = format, 3, at("rest")
			})
			s.awaitReady(t)
			for sender := range 4 {
				body, err := batchOf(sender, 20, 5).Marshal()
				require.NoError(t, err)
				r, err := http.NewRequest(http.MethodPost, s.write, bytes.NewReader(snappy.Encode(nil, body)))
				require.NoError(t, err)
				r.Header.Set("Content-Type", "application/x-protobuf")
				r.Header.Set("X-Scope-OrgID", "acme")
				resp, err := http.DefaultClient.Do(r)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				require.Equal(t, http.StatusNoContent, resp.StatusCode)
			}
			count := func(name string) (n int) {
				for _, m := range readTopic(t, pulsar.URL(), at(name)) {
					var req prompb.WriteRequest
					if format != "packed" {
						n++
					} else if assert.NoError(t, req.Unmarshal(m.payload)) {
						n += len(req.Timeseries)
					}
				}
				return n
			}
			assert.Equal(t, 20, count("sender-0"))
			assert.Equal(t, 20, count("sender-1"))
			assert.Equal(t, 40, count("rest"))
			require.NoError(t, s.stop())
		})
	}
}
