package nightingale

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/prompb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func TestTailRecognisesEveryFormat(t *testing.T) {
	series := oneSeries("__name__", "up", "job", "api", "zone", "b").Timeseries[0]
	series.Samples[0] = prompb.Sample{Timestamp: 1_700_000_000_123, Value: 1.5}
	packed := marshal(t, &prompb.WriteRequest{Timeseries: []prompb.TimeSeries{series, series}})
	alone, err := series.Marshal()
	require.NoError(t, err)
	packedV2 := encodeAs(decodedAs(t, 0, packed, form{symbolic: true, lean: true}), packedV2Format, packing{})[0].Payload
	// 0x0a is a line feed, and 123 bytes of a series begin a JSON object.
	long := strings.Repeat("a", 123-38)
	braced := marshal(t, oneSeries("__name__", "up", "job", long))
	require.Equal(t, "\n{", string(braced[:2]))
	const line = `2023-11-14T22:13:20.123Z  up{job="api",zone="b"}  1.5  partition 3` + "\n"
	for name, test := range map[string]struct {
		payload []byte
		want    string
	}{
		"packed":                          {packed, line + line},
		"packed-v2":                       {packedV2, line + line},
		"protobuf":                        {alone, line},
		"packed, whose length is a brace": {braced, "1970-01-01T00:00:00.001Z  up{job=\"" + long + "\"}  1  partition 3\n"},
		"json":                            {[]byte(`{"name":"up","labels":{"job":"api","zone":"b"},"timestamp":1700000000123,"value":1.5}`), line},
		"json, stale":                     {[]byte(`{"name":"up","labels":{},"timestamp":0,"value":"NaN","stale":true}`), "1970-01-01T00:00:00.000Z  up  stale  partition 3\n"},
		"json, not finite":                {[]byte(`{"name":"up","labels":{},"timestamp":0,"value":"+Inf"}`), "1970-01-01T00:00:00.000Z  up  +Inf  partition 3\n"},
		"json-kafka-adapter":              {[]byte(`{"value":"1.5","timestamp":"2023-11-14T22:13:20Z","name":"up","labels":{"__name__":"up","job":"api"}}`), `2023-11-14T22:13:20Z  up{job="api"}  1.5  partition 3` + "\n"},
		"another JSON":                    {[]byte(`{"name":7}`), "partition 3: 10 bytes of JSON that are no sample\n"},
		"something else":                  {[]byte("\x00\x01hello"), "partition 3: 7 bytes in no known format\n"},
		"nothing":                         {nil, "partition 3: 0 bytes in no known format\n"},
		"a terminal's codes":              {[]byte(`{"name":"a\u001b[2J","labels":{"l":"\u0007"},"timestamp":0,"value":1}`), `1970-01-01T00:00:00.000Z  "a\x1b[2J"{l="\a"}  1  partition 3` + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, test.want, string(new(tailPrinter).print(3, test.payload)))
		})
	}
}

// TestTailPrintsAllKinds: what the other formats carry beside samples.
func TestTailPrintsAllKinds(t *testing.T) {
	text := string(new(tailPrinter).print(0, marshal(t, everything())))
	assert.Contains(t, text, "histogram {")
	assert.Contains(t, text, "exemplar ")
	assert.Contains(t, text, "  stale  ")
	assert.NotContains(t, text, "no known format")

	messages := encodeAs(decodedAs(t, 1, marshalV2(t, everythingV2()), form{symbolic: true, lean: true}), packedV2Format, packing{})
	require.Len(t, messages, 1)
	assert.Equal(t, text, string(new(tailPrinter).print(0, messages[0].Payload)), "packed-v2 has the same")
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

func TestTailRunsBesideAReceiver(t *testing.T) {
	loaded, err := config.Load(config.Spec[Config]{
		Name: "nightingale", Defaults: DefaultConfig, Flags: Flags, Usage: new(bytes.Buffer),
		Args: []string{"-tail", "-tail.topic", "persistent://a/b/c"}, Environ: []string{"NIGHTINGALE_ADMIN_LISTEN=127.0.0.1:9202"},
	})
	require.NoError(t, err)
	assert.True(t, loaded.Config.Tail)
	assert.Equal(t, "persistent://a/b/c", loaded.Config.TailTopic)
	assert.Equal(t, "127.0.0.1:0", loaded.Config.Admin.Listen)
	cfg := tailConfig("persistent://a/b/c")
	assert.False(t, cfg.Durable)
	require.NoError(t, cfg.Validate())
}

// TestTailEndsWithItsReader: that is how "-tail | head" ends.
func TestTailEndsWithItsReader(t *testing.T) {
	r, w, err := os.Pipe()
	require.NoError(t, err)
	require.NoError(t, r.Close())
	cfg := DefaultConfig()
	cfg.Admin.Listen = "127.0.0.1:0"
	program := app.Program[Config]{Name: "nightingale", Build: func(_ context.Context, rt *app.Runtime, _ Config) error {
		startTail(rt, w, func(ctx context.Context, h messaging.Handler) error {
			require.NoError(t, h(ctx, &messaging.Delivery{Payload: []byte("x")}))
			<-ctx.Done()
			return nil
		})
		return nil
	}}
	require.NoError(t, app.RunProgram(t.Context(), program, cfg, zap.NewNop()))
	require.NoError(t, w.Close())
}
