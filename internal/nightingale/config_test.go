package nightingale

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/nightingale/format"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

func load(environ ...string) (config.Loaded[Config], error) {
	return config.Load(config.Spec[Config]{Name: "nightingale", Defaults: DefaultConfig, Environ: environ, Usage: new(bytes.Buffer)})
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
	for _, test := range []struct{ variables, says string }{
		{"NIGHTINGALE_FORMAT=xml", "format: must be one of " + strings.Join(format.Names(), ", ") + `, got "xml"`},
		{"NIGHTINGALE_ACK=never", `ack: must be one of broker, queued, got "never"`},
		{"NIGHTINGALE_EXEMPLAR_SERIES=maybe", `exemplar_series: must be one of refuse, accept, got "maybe"`},
		{"NIGHTINGALE_TOPIC=metrics", "topic: must be persistent://"},
		{"NIGHTINGALE_TOPIC=persistent://public/default/m-partition-{tenant}", "topic: must not end with {tenant} after"},
		{"NIGHTINGALE_HTTP_LISTEN=9201", "http.listen: must be host:port"},
		{"NIGHTINGALE_REQUEST_TIMEOUT=0s", "request_timeout: must be > 0"},
		{"NIGHTINGALE_LIMITS_SERIES=0", "limits.series: must be > 0"},
		{"NIGHTINGALE_LIMITS_IN_FLIGHT_BYTES=1MiB", "limits.in_flight_bytes: must be at least compressed_bytes + decoded_bytes = 42MiB"},
		{"NIGHTINGALE_LIMITS_CONNECTIONS=-1", "limits.connections: must be >= 0"},
		{"NIGHTINGALE_DEDUP_ENTRIES=-1", "dedup.entries: must be >= 0"},
		{"NIGHTINGALE_DEDUP_WINDOW=0s", "dedup.window: must be > 0"},
		{"NIGHTINGALE_TENANTS_DEFAULT_BURST=-1", "tenants.default.burst: must be >= 0"},
		{"NIGHTINGALE_TENANTS_OVERRIDES={a/b: {burst: 1}}", "tenants.overrides: "},
		{"NIGHTINGALE_TENANTS_OVERRIDES={a: {samples_per_second: -1}}", "samples_per_second: must be >= 0"},
		{"NIGHTINGALE_HTTP_BEARER_TOKENS=['']", "http.bearer_tokens: must not be empty"},
		{"NIGHTINGALE_HTTP_BEARER_TOKENS=[' ']", "http.bearer_tokens: must not be empty"},
		{"NIGHTINGALE_HTTP_SENDERS=[{bearer_tokens: [a]}]", "http.senders[0].tenant: must name the tenant"},
		{"NIGHTINGALE_HTTP_SENDERS=[{tenant: a/b, bearer_tokens: [a]}]", "http.senders[0].tenant: a tenant's name consists of"},
		{"NIGHTINGALE_HTTP_SENDERS=[{tenant: a}]", "http.senders[0]: must have bearer_tokens, bearer_token_file or basic_auth_users"},
		{"NIGHTINGALE_HTTP_SENDERS=[{tenant: a, bearer_tokens: [b, ' ']}]", "http.senders[0].bearer_tokens[1]: must not be empty"},
		{"NIGHTINGALE_HTTP_SENDERS=[{tenant: a, basic_auth_users: ['']}]", "http.senders[0].basic_auth_users[0]: must not be empty"},
		{"NIGHTINGALE_TOPIC=persistent://public/{tenant}/m; NIGHTINGALE_HTTP_SENDERS=[{tenant: a!,bearer_tokens: [b]}]", "http.senders[0].tenant: cannot be part of the topic's name"},
		{"NIGHTINGALE_PROFILE_ROUTING=explicit", "profile.routing: must be"},
	} {
		t.Run(test.variables, func(t *testing.T) {
			_, err := load(strings.Split(test.variables, "; ")...)
			require.ErrorContains(t, err, test.says)
		})
	}
}
