package nightingale

import (
	"bytes"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func load(environ ...string) (config.Loaded[Config], error) {
	return config.Load(config.Spec[Config]{Name: "nightingale", Defaults: DefaultConfig, Environ: environ, Usage: new(bytes.Buffer)})
}

// TestTheConfigurationFileHoldsTheDefaults: the file is the documentation of them.
func TestTheConfigurationFileHoldsTheDefaults(t *testing.T) {
	const path = "../../configs/nightingale.yaml"
	_, err := os.Stat(path)
	require.NoError(t, err)
	loaded, err := config.Load(config.Spec[Config]{Name: "nightingale", Defaults: DefaultConfig, Args: []string{"-config.file", path}, Usage: new(bytes.Buffer)})
	require.NoError(t, err)
	assert.Equal(t, DefaultConfig(), loaded.Config)
}

func TestConfigurationFromTheEnvironment(t *testing.T) {
	loaded, err := load("NIGHTINGALE_PULSAR_URL=pulsar://broker:6650", "NIGHTINGALE_PROFILE_COMPRESSION=zstd",
		"NIGHTINGALE_LIMITS_DECODED_BYTES=8MiB", "NIGHTINGALE_REQUEST_TIMEOUT=3s")
	require.NoError(t, err)
	assert.Equal(t, "pulsar://broker:6650", loaded.Config.Pulsar.URL)
	assert.Equal(t, messaging.ZSTD, loaded.Config.Profile.Compression)
	assert.Equal(t, 8*config.MiB, loaded.Config.Limits.DecodedBytes)
	assert.Equal(t, 3*time.Second, loaded.Config.RequestTimeout)
	assert.Equal(t, messaging.Ops().MaxPendingRecords, loaded.Config.Profile.MaxPendingRecords, "the rest of the profile stays")
}

func TestConfigurationFaults(t *testing.T) {
	for _, test := range []struct{ variable, says string }{
		{"NIGHTINGALE_FORMAT=xml", `format: must be one of json, json-kafka-adapter, protobuf, packed, packed-v2, got "xml"`},
		{"NIGHTINGALE_ACK=never", `ack: must be one of broker, queued, got "never"`},
		{"NIGHTINGALE_TOPIC=metrics", "topic: must be persistent://"},
		{"NIGHTINGALE_HTTP_LISTEN=9201", "http.listen: must be host:port"},
		{"NIGHTINGALE_REQUEST_TIMEOUT=0s", "request_timeout: must be > 0"},
		{"NIGHTINGALE_LIMITS_SERIES=0", "limits.series: must be > 0"},
		{"NIGHTINGALE_LIMITS_IN_FLIGHT_BYTES=1MiB", "limits.in_flight_bytes: must be at least compressed_bytes + decoded_bytes = 42MiB"},
		{"NIGHTINGALE_LIMITS_CONNECTIONS=-1", "limits.connections: must be >= 0"},
		{"NIGHTINGALE_DEDUP_ENTRIES=-1", "dedup.entries: must be >= 0"},
		{"NIGHTINGALE_DEDUP_WINDOW=0s", "dedup.window: must be > 0"},
		{"NIGHTINGALE_TENANTS_TRACKED=0", "tenants.tracked: must be > 0"},
		{"NIGHTINGALE_TENANTS_DEFAULT_BURST=-1", "tenants.default.burst: must be >= 0"},
		{"NIGHTINGALE_TENANTS_OVERRIDES={a/b: {burst: 1}}", "tenants.overrides: "},
		{"NIGHTINGALE_TENANTS_OVERRIDES={a: {samples_per_second: -1}}", "samples_per_second: must be >= 0"},
		{"NIGHTINGALE_HTTP_BEARER_TOKENS=['']", "http.bearer_tokens: must not be empty"},
		{"NIGHTINGALE_PROFILE_ROUTING=explicit", "profile.routing: must be"},
	} {
		t.Run(test.variable, func(t *testing.T) {
			_, err := load(test.variable)
			require.ErrorContains(t, err, test.says)
		})
	}
}
