package tail

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/internal/nightingale/remotewrite"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/e2e/nightingale/writetest"
)

func TestTailRecognisesEveryFormat(t *testing.T) {
	series := writetest.OneSeries("__name__", "up", "job", "api", "zone", "b").Timeseries[0]
	series.Samples[0] = prompb.Sample{Timestamp: 1_700_000_000_123, Value: 1.5}
	request := writetest.Marshal(t, &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{series, series}})
	alone, err := series.Marshal()
	require.NoError(t, err)
	packed := packedOf(t, remotewrite.DecodeV1, request)[0].Payload
	// 0x0a is a line feed, and a label of 123 bytes begins like a JSON object.
	long := strings.Repeat("a", 123-12)
	braced, err := writetest.OneSeries("__name__", long).Timeseries[0].Marshal()
	require.NoError(t, err)
	require.Equal(t, "\n{", string(braced[:2]))
	const line = `2023-11-14T22:13:20.123Z  up{job="api",zone="b"}  1.5  partition 3` + "\n"
	for name, test := range map[string]struct {
		payload []byte
		want    string
	}{
		"packed":                 {packed, line + line},
		"protobuf":               {alone, line},
		"protobuf, with a brace": {braced, "1970-01-01T00:00:00.001Z  " + long + "  1  partition 3\n"},
		"json":                   {[]byte(`{"name":"up","labels":{"job":"api","zone":"b"},"timestamp":1700000000123,"value":1.5}`), line},
		"json, stale":            {[]byte(`{"name":"up","labels":{},"timestamp":0,"value":"NaN","stale":true}`), "1970-01-01T00:00:00.000Z  up  stale  partition 3\n"},
		"json, not finite":       {[]byte(`{"name":"up","labels":{},"timestamp":0,"value":"+Inf"}`), "1970-01-01T00:00:00.000Z  up  +Inf  partition 3\n"},
		"json-kafka-adapter":     {[]byte(`{"value":"1.5","timestamp":"2023-11-14T22:13:20Z","name":"up","labels":{"__name__":"up","job":"api"}}`), `2023-11-14T22:13:20Z  up{job="api"}  1.5  partition 3` + "\n"},
		"another JSON":           {[]byte(`{"name":7}`), "partition 3: 10 bytes of JSON that are no sample\n"},
		"something else":         {[]byte("\x00\x01hello"), "partition 3: 7 bytes in no known format\n"},
		"nothing":                {nil, "partition 3: 0 bytes in no known format\n"},
		"a terminal's codes":     {[]byte(`{"name":"a\u001b[2J","labels":{"l":"\u0007"},"timestamp":0,"value":1}`), `1970-01-01T00:00:00.000Z  "a\x1b[2J"{l="\a"}  1  partition 3` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, string(new(printer).print(3, test.payload)))
		})
	}
}

// TestTailPrintsAllKinds: what the other formats carry beside samples.
func TestTailPrintsAllKinds(t *testing.T) {
	text := string(new(printer).print(0, packedOf(t, remotewrite.DecodeV1, writetest.Marshal(t, writetest.Everything()))[0].Payload))
	assert.Contains(t, text, "histogram {")
	assert.Contains(t, text, "exemplar ")
	assert.Contains(t, text, "  stale  ")
	assert.NotContains(t, text, "no known format")

	messages := packedOf(t, remotewrite.DecodeV2, writetest.MarshalV2(t, writetest.EverythingV2()))
	require.Len(t, messages, 1)
	assert.Equal(t, text, string(new(printer).print(0, messages[0].Payload)), "2.0 has the same")
}

func TestTailPrintsUntilItIsAskedToStop(t *testing.T) {
	var out bytes.Buffer
	ctx, cancel := context.WithCancel(t.Context())
	err := tailTo(ctx, &out, func(ctx context.Context, h messaging.Handler) error {
		for range 3 {
			require.NoError(t, h(ctx, &messaging.Delivery{Payload: []byte(`{"name":"up","timestamp":0,"value":1}`)}))
		}
		cancel()
		<-ctx.Done()
		return nil
	})
	require.NoError(t, err)
	assert.Equal(t, 3, strings.Count(out.String(), "  up  1  partition 0\n"))
}

type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestTailEndsWhenNobodyReads(t *testing.T) {
	err := tailTo(t.Context(), closedPipe{}, func(ctx context.Context, h messaging.Handler) error {
		for ctx.Err() == nil {
			_ = h(ctx, &messaging.Delivery{Payload: []byte(`{}`)})
		}
		return nil
	})
	assert.ErrorContains(t, err, "broken pipe")
}

// packedOf returns a request's body in the format packed.
func packedOf(t *testing.T, decode func(*batch.Batch, []byte, remotewrite.Limits) error, body []byte) []messaging.Record {
	t.Helper()
	b := &batch.Batch{References: true}
	require.NoError(t, decode(b, body, remotewrite.DefaultLimits()))
	_, _ = remotewrite.Validate(b, remotewrite.DefaultLimits(), nil)
	var out format.Messages
	format.Find("packed").Encode(b, new(format.Packing), &out)
	return out.Records
}
