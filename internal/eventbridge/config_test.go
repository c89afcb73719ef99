package eventbridge_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/internal/eventbridge/preprocessor"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
)

func load(t *testing.T, text string, environ []string, args ...string) (eventbridge.Config, error) {
	t.Helper()
	file := t.TempDir() + "/eventbridge.yaml"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := config.Load(config.Spec[eventbridge.Config]{
		Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Args: append([]string{"-config.file", file}, args...),
		Environ: environ, Usage: os.Stderr,
	})
	return loaded.Config, err
}

// The file in configs/ says what the defaults are, and has every key.
func TestTheExampleHoldsEveryDefault(t *testing.T) {
	text, err := os.ReadFile("../../configs/eventbridge.yaml")
	require.NoError(t, err)
	cfg, err := load(t, string(text), nil)
	require.NoError(t, err)
	want := eventbridge.DefaultConfig()
	// What is empty is there, to be found.
	want.API.Tokens, want.Ingest.Tenants = []eventbridge.APIToken{}, []preprocessor.TenantConfig{}
	want.Targets.Allow, want.Targets.Ports = cfg.Targets.Allow, cfg.Targets.Ports
	assert.Empty(t, cfg.Targets.Allow)
	assert.Empty(t, cfg.Targets.Ports)
	want.Connections = target.Connections{
		Kafka: map[string]target.Kafka{}, RabbitMQ: map[string]target.RabbitMQ{}, Redis: map[string]target.Redis{}, Pulsar: map[string]target.Pulsar{},
	}
	assert.Equal(t, want, cfg)
	for _, key := range keys(reflect.TypeFor[eventbridge.Config]()) {
		assert.Contains(t, string(text), key+":")
	}
}

// keys are the names of all keys of a section and of those below it.
func keys(section reflect.Type) (names []string) {
	for i := range section.NumField() {
		field := section.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("yaml"), ",")
		if options != "inline" && name != "" && name != "-" {
			names = append(names, name)
		}
		of := field.Type
		for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
			of = of.Elem()
		}
		if of.Kind() == reflect.Struct && strings.HasPrefix(of.PkgPath(), "github.com/aviaryhq/") {
			names = append(names, keys(of)...)
		}
	}
	return names
}

func TestTheEnvironmentAloneIsEnough(t *testing.T) {
	cfg, err := load(t, "{}", []string{
		"EVENTBRIDGE_PULSAR_URL=pulsar://p:6650", "EVENTBRIDGE_HTTP_LISTEN=:1", "EVENTBRIDGE_ADMIN_LISTEN=:2", "EVENTBRIDGE_ROLES=[engine]",
	})
	require.NoError(t, err)
	assert.Equal(t, "pulsar://p:6650", cfg.Pulsar.URL)
	assert.Equal(t, ":1", cfg.HTTP.Listen)
	assert.Equal(t, ":2", cfg.Admin.Listen)
	assert.Equal(t, eventbridge.Roles{"engine"}, cfg.Roles)
	cfg, err = load(t, "{}", nil, "-roles", "preprocessor,processor")
	require.NoError(t, err)
	assert.Equal(t, eventbridge.Roles{"preprocessor", "processor"}, cfg.Roles)
}

func TestEveryFaultIsReportedByItsPath(t *testing.T) {
	_, err := load(t, `
http: {listen: nowhere}
roles: [engine, engine, cook]
topics: {namespace: public}
api: {tokens: [{role: king}]}
ingest: {tenants: [{name: X}], limits: {ratio: 0}}
engine: {queue_records: 0}
processor: {start_rate: 0}
targets: {idle_timeout: 1ms}
connections: {redis: {main: {addresses: [a]}}}
`, nil)
	var faults *config.Error
	require.ErrorAs(t, err, &faults)
	var paths []string
	for _, f := range faults.Faults {
		paths = append(paths, f.Path)
	}
	for _, path := range []string{
		"http.listen", "roles[1]", "roles[2]", "topics.namespace", "api.tokens[0].token", "api.tokens[0].role", "ingest.tenants[0].name", "ingest.limits.ratio",
		"engine.queue_records", "processor.start_rate", "targets.idle_timeout", "connections.redis.main.addresses[0]",
	} {
		assert.Contains(t, paths, path)
	}
}

func TestNoRoleIsAFault(t *testing.T) {
	_, err := load(t, "roles: []", nil)
	require.ErrorContains(t, err, "at least one of preprocessor, engine, processor")
}
