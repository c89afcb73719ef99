package load_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/bench/load"
	"github.com/aviaryhq/aviary/test/bench/workload"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// The stages of a turn add up to its delay, for batches and for single messages.
func TestStages(t *testing.T) {
	for _, records := range []int{1, 100} {
		w := workload.Default()
		w.MessageSize, w.SubscriptionsPerTopic, w.ProducerRate, w.PartitionsPerTopic = 64, 1, 2000, 0
		w.WarmupDurationMinutes, w.TestDurationMinutes = 0, 0.01
		var result struct {
			Result *load.Result `json:"result"`
		}
		run(t, load.Turn{
			Workload: w, Topics: []string{"persistent://public/default/a"}, Subscriptions: []string{"s"},
			Side: workload.Side{Driver: "library", Stages: true, Publisher: workload.Publisher{
				BatchRecords: records, Compression: messaging.NoCompression,
			}},
		}, &result)
		f := result.Result.Figures
		require.InDelta(t, 1, f["stages_sum_over_total"], 0.05)
		require.InDelta(t, f["acknowledged"], f["stages_messages"], 0)
		require.Positive(t, f["stage_queue_mean_ms"])
		require.Positive(t, f["stage_send_write_mean_ms"])
		require.Contains(t, result.Result.Histograms, "stage_pull")
	}
}

// run runs a turn at a broker of its own and decodes the last line of its output.
func run(t *testing.T, turn load.Turn, into any) {
	t.Helper()
	cluster := messaging.DefaultConfig()
	cluster.URL = fakebroker.Start(t).URL()
	spec, err := json.Marshal(turn)
	require.NoError(t, err)
	var out bytes.Buffer
	require.NoError(t, load.RunChild(t.Context(), cluster, bytes.NewReader(spec), &out))
	lines := bytes.Split(bytes.TrimSpace(out.Bytes()), []byte("\n"))
	require.NoError(t, json.Unmarshal(lines[len(lines)-1], into))
}
