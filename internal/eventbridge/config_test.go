package eventbridge_test

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/eventbridge"
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

func TestFaultsOfAddressesSayWhatIsWanted(t *testing.T) {
	_, err := load(t, "http: {listen: ':1'}\nadmin: {listen: '127.0.0.1:1'}\ntargets: {allow: [10.0.0.1, 10.0.0.0/33]}\n", nil)
	require.ErrorContains(t, err, `http.listen: must be another address than admin.listen, got ":1" for both (line 1)`)
	require.ErrorContains(t, err, `targets.allow[0]: must be a network such as 10.1.0.0/16 or 192.0.2.7/32, got "10.0.0.1" (line 3)`)
	require.ErrorContains(t, err, `targets.allow[1]: must be a network such as 10.1.0.0/16 or 192.0.2.7/32, got "10.0.0.0/33" (line 3)`)
}

func TestEveryFaultIsReportedByItsPath(t *testing.T) {
	_, err := load(t, `
http: {listen: nowhere, hosts: ["*", events.example.com, "events.example.com:443", "*.example.com", "https://events.example.com", ""]}
roles: [engine, engine, cook]
topics: {namespace: public}
api: {tokens: [{role: king}]}
ingest: {tenants: [{name: X}], limits: {batch_events: 0}}
engine: {queue_bytes: 0}
processor: {held_messages: 0}
targets: {ports: [70000]}
connections: {kafka: {main: {brokers: [a]}}}
`, nil)
	var faults *config.Error
	require.ErrorAs(t, err, &faults)
	var paths []string
	for _, f := range faults.Faults {
		paths = append(paths, f.Path)
	}
	for _, path := range []string{
		"http.listen", "http.hosts[2]", "http.hosts[3]", "http.hosts[4]", "http.hosts[5]", "roles[1]", "roles[2]", "topics.namespace", "api.tokens[0].token", "api.tokens[0].role", "ingest.tenants[0].name", "ingest.limits.batch_events",
		"engine.queue_bytes", "processor.held_messages", "targets.ports[0]", "connections.kafka.main.brokers[0]",
	} {
		assert.Contains(t, paths, path)
	}
	assert.NotContains(t, paths, "http.hosts[0]")
	assert.NotContains(t, paths, "http.hosts[1]")
}

// TestSendersAreNotAskedWhereManagersAreNot: a list of tenants protects nothing while everybody may
// change the buses.
func TestSendersAreNotAskedWhereManagersAreNot(t *testing.T) {
	const tenants = "ingest: {tenants: [{name: shop, buses: [orders], api_keys: [0123456789abcdef]}]}\n"
	_, err := load(t, tenants, nil)
	require.ErrorContains(t, err, "api.tokens: must have a token if ingest.tenants has tenants")
	_, err = load(t, tenants+"api: {open: true}", nil)
	require.NoError(t, err)
	_, err = load(t, tenants+"api: {tokens: [{token: 0123456789abcdef, role: admin}]}", nil)
	require.NoError(t, err)
	_, err = load(t, "instance: a/b", nil)
	require.ErrorContains(t, err, "instance: must have at most 255 bytes and no /")
}

func TestNoRoleIsAFault(t *testing.T) {
	_, err := load(t, "roles: []", nil)
	require.ErrorContains(t, err, "at least one of preprocessor, engine, processor")
}

// -config.check finds what the start would.
func TestFilesThatCannotBeReadAreFaults(t *testing.T) {
	_, err := load(t, `
http: {web_config_file: /nowhere/web.yaml}
secrets: {key_file: /nowhere/keys}
api: {tokens: [{token_file: /nowhere/token, role: admin}]}
ingest: {tenants: [{name: shop, buses: [orders], api_key_file: /nowhere/api}]}
`, nil)
	for _, path := range []string{"http.web_config_file", "secrets.key_file", "api.tokens[0].token_file", "ingest.tenants[0].api_key_file"} {
		require.ErrorContains(t, err, path)
	}
}

// A token of two roles would have the rights of one of them by chance.
func TestATokenHasOneRole(t *testing.T) {
	_, err := load(t, "api: {tokens: [{token: 0123456789abcdef, role: admin}, {token: 0123456789abcdef}]}", nil)
	require.ErrorContains(t, err, "api.tokens[1].token: is also a token of api.tokens[0].token, for another tenant or role")
	file := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(file, []byte("other\n0123456789abcdef\n"), 0o600))
	_, err = load(t, "api: {tokens: [{token: 0123456789abcdef, role: admin}, {token_file: "+file+"}]}", nil)
	require.ErrorContains(t, err, "api.tokens[1].token_file: is also a token of api.tokens[0].token, for another")
}

// All faults are told at once: another one of the section hides no file that cannot be read, and no
// fault is told twice.
func TestFaultsHideNoFilesThatCannotBeRead(t *testing.T) {
	_, err := load(t, `
api: {tokens: [{token_file: /nowhere/token, role: root}]}
ingest:
  tenants:
    - {name: Shop, buses: ["*"], api_keys: [one]}
    - {name: partner, buses: ["*"], api_keys: [one], api_key_file: /nowhere/api, quota: {events_per_second: -1}}
    - {name: batch, buses: ["*"], jwt: {key_file: /nowhere/jwt, issuer: i}}
    - {name: more, buses: ["*"], jwt: {issuer: i, audience: a}}
`, nil)
	require.ErrorContains(t, err, "9 faults")
	for _, path := range []string{
		"api.tokens[0].role: must be one of", "api.tokens[0].token_file: cannot read", "ingest.tenants[0].name: ",
		"ingest.tenants[1].api_keys[0]: is also a token of", "ingest.tenants[1].api_key_file: cannot read", "ingest.tenants[1].quota.events_per_second: ",
		"ingest.tenants[2].jwt.key_file: cannot read", "ingest.tenants[2].jwt.audience: must be set", "ingest.tenants[3].jwt.key_file: must be set",
	} {
		require.ErrorContains(t, err, path)
	}
}

func TestCommandsNeedABound(t *testing.T) {
	_, err := load(t, "{}", nil, "-export", "-", "-timeout", "0s")
	require.ErrorContains(t, err, "-timeout must be > 0, got 0s")
}

// A service has the usual admin port: a command beside it takes another.
func TestCommandsTakeNoPortOfAService(t *testing.T) {
	for _, args := range [][]string{{"-export", "-"}, {"-import", "registry.yaml"}, {"-reencrypt"}} {
		cfg, err := load(t, "secrets: {key_file: \""+keyFile(t)+"\"}", nil, args...)
		require.NoError(t, err)
		assert.Equal(t, "127.0.0.1:0", cfg.Admin.Listen, "%v", args)
	}
}

func keyFile(t *testing.T) string {
	t.Helper()
	file := t.TempDir() + "/keys"
	require.NoError(t, os.WriteFile(file, []byte("k1 "+base64.StdEncoding.EncodeToString(make([]byte, 32))+"\n"), 0o600))
	return file
}
