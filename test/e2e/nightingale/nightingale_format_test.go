package nightingale_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/aviaryhq/aviary/test/systems/remotewrite"

	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale"
	"github.com/aviaryhq/aviary/test/stack"
)

// sampleOf is a sample, with the labels of its series as text.
type sampleOf struct {
	series    string
	timestamp int64
}

func readPacked(t *testing.T, payload []byte) (all []sampleOf) {
	t.Helper()
	var req writev2.Request
	require.NoError(t, req.Unmarshal(payload))
	for _, ts := range req.Timeseries {
		var labels []string
		for _, ref := range ts.LabelsRefs {
			labels = append(labels, req.Symbols[ref])
		}
		for _, v := range ts.Samples {
			all = append(all, sampleOf{fmt.Sprint(labels), v.Timestamp})
		}
	}
	return all
}

// TestNightingalePackedIsCompleteAndInOrder: every sample is on the topic once, a series is on one
// partition, and its samples are in order.
func TestNightingalePackedIsCompleteAndInOrder(t *testing.T) {
	t.Parallel()
	pulsar := stack.Pulsar(t)
	const partitions, senders, rounds, series, limit = 4, 8, 30, 200, 2 << 10
	topic := pulsar.Topic(t, pulsar.Namespace(t), partitions)
	s := startNightingale(t, pulsar.URL(), topic, func(c *nightingale.Config) {
		c.Format, c.MessageBytes = "packed", limit // many messages for a request
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
		assert.LessOrEqual(t, len(m.payload), limit)
		used[m.key] = true
		messages++
		for _, v := range readPacked(t, m.payload) {
			require.Equal(t, next[v.series], v.timestamp, v.series)
			next[v.series]++
			samples++
			if partition[v.series] == "" {
				partition[v.series] = m.key
			}
			require.Equal(t, partition[v.series], m.key, "one series, one partition")
		}
	}
	assert.Equal(t, senders*rounds*series, samples)
	assert.Len(t, next, senders*series)
	assert.Len(t, used, partitions)
	assert.Less(t, messages, samples/10)
}

// TestNightingaleProtobuf: one TimeSeries per message, keyed by its series.
func TestNightingaleProtobuf(t *testing.T) {
	t.Parallel()
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
			t.Parallel()
			pulsar := stack.Pulsar(t)
			namespace := pulsar.Namespace(t)
			// The bound holds three: those of two senders and the overflow.
			at := func(name string) string { return "persistent://" + namespace + "/" + name }
			s := startNightingale(t, pulsar.URL(), at("sender-{label.sender}"), func(c *nightingale.Config) {
				c.Format, c.Topics.MaxTopics, c.Topics.OverflowTopic = format, 3, at("rest")
			})
			s.awaitReady(t)
			for sender := range 4 {
				answer, err := remotewrite.Send(t.Context(), s.write, batchOf(sender, 20, 5), http.Header{"X-Scope-Orgid": {"acme"}})
				require.NoError(t, err)
				require.Equal(t, http.StatusNoContent, answer.Status, answer.Text)
			}
			count := func(name string) (n int) {
				for _, m := range readTopic(t, pulsar.URL(), at(name)) {
					switch format {
					case "packed":
						n += len(readPacked(t, m.payload))
					default:
						n++
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
