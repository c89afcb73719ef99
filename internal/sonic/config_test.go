package sonic_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/sonic"
)

func load(t *testing.T, file string, environ ...string) (sonic.Config, error) {
	t.Helper()
	loaded, err := config.Load(config.Spec[sonic.Config]{
		Name: "sonic", Defaults: sonic.DefaultConfig, Args: []string{"-config.file", file}, Environ: environ, Usage: os.Stderr,
	})
	return loaded.Config, err
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := t.TempDir() + "/sonic.yaml"
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	return file
}

func TestTheEnvironmentAloneIsEnough(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, write(t, "{}"), "SONIC_PULSAR_URL=pulsar://p:6650", "SONIC_REDIS_URL=redis://r:6379", "SONIC_LISTEN=:1", "SONIC_ADMIN_LISTEN=:2",
		"SONIC_ZONES=[default, other]")
	require.NoError(t, err)
	assert.Equal(t, "pulsar://p:6650", cfg.Pulsar.URL)
	assert.Equal(t, "redis://r:6379", cfg.Redis.URL)
	assert.Equal(t, ":1", cfg.Listen)
	assert.Equal(t, ":2", cfg.Admin.Listen)
	assert.Equal(t, []string{"default", "other"}, cfg.Zones)
}

// A peer needs a URL, and nothing else.
func TestPeersHaveDefaults(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, write(t, `{zones: [default, other], peers: [{zone: other, redis: {url: "redis://r:6379"}}]}`))
	require.NoError(t, err)
	want := cfg.Redis
	want.URL = "redis://r:6379"
	assert.Equal(t, want, cfg.Peers[0].Redis)
}

func TestEveryFaultIsReportedByItsPath(t *testing.T) {
	t.Parallel()
	_, err := load(t, write(t, `
listen: nowhere
redis: {url: "http://x", split_mset: true, wait: -1s, tls: {ca_file: /nowhere, cert_file: x}}
tls: {key_file: x, client_ca_file: /nowhere}
users: [{name: a, password: hidden}, {name: a, password: hidden, password_file: /nowhere}, {password: hidden, keys: ["", "{sonic:0}"]}, {name: "b c"}]
limits: {clients: 0, bulk_bytes: 1, query_bytes: 0, output_bytes: 0, auth_timeout: 0s, idle_timeout: -1s}
publish: never
flush: always
pulsar: {url: "http://x"}
zone: "a b"
zones: [b, c, b, "d@"]
topic: non-persistent://public/default/x
ack: never
conflicts: [{prefix: x, policy: best}, {prefix: x}, {prefix: "{sonic:0}"}]
outbox: {bytes: 1KiB, age: -1s, full: never}
peers: [{zone: c, redis: {url: "http://x"}}, {zone: c, redis: {url: "redis://c:99999"}}, {zone: "a b", redis: {url: "redis://c"}}, {zone: e, redis: {url: "redis://e"}}]
admin: {listen: nowhere}
`))
	require.Error(t, err)
	for _, want := range []string{
		"listen: must be host:port", "redis.url: must be redis://", "redis.split_mset: is of no use without a Redis Cluster", "pulsar.url: must start with pulsar://",
		"zone: must be letters", "zones[2]: must be unique", "zones[3]: must be letters", `zones: must hold this zone, "a b"`, "topic: must be a name or persistent://",
		"ack: must be one of local, published", "conflicts[0].policy: must be one of lww, none, counter", "conflicts[1].prefix: must be unique",
		"conflicts[2].prefix: must not begin with {sonic:", "outbox.bytes: must be at least 1MiB", "outbox.age: must be >= 0", "outbox.full: must be one of block, fail, drop",
		"peers[0].redis.url: must be redis://", "peers[1].zone: must be unique", "peers[1].redis.url: must name a port from 1 to 65535, got 99999", "peers[2].zone: must be another one of zones", "peers[3].zone: must be another one of zones",
		"redis.wait: must be > 0", "redis.tls: is of no use without rediss://", "redis.tls.ca_file: must name a readable file of PEM certificates",
		"redis.tls.cert_file: must be given together with key_file", "\n  tls.cert_file: must be given together with key_file",
		"\n  tls.client_ca_file: must name a readable file",
		"users[1].name: must be unique", "users[1].password_file: give a secret either in place or by its file", "users[2].name: must be a name",
		"users[2].keys[0]: must not be empty", "users[2].keys[1]: must not begin with {sonic:", `users[3].name: must be a name without white space, got "b c"`,
		"users[3].password: must be set, or password_file",
		"limits.clients: must be from 1 to 1000000, got 0", "limits.bulk_bytes: must be from 1KiB to 512MiB, got 1",
		"limits.query_bytes: must be from 1KiB to 1GiB, got 0", "limits.output_bytes: must be from 1KiB",
		"limits.auth_timeout: must be > 0", "limits.idle_timeout: must be >= 0", "publish: must be one of relay, replicate", "flush: must be one of refuse, zone, replicate",
		"admin.listen: must be host:port",
	} {
		assert.Contains(t, err.Error(), want)
	}
	assert.NotContains(t, err.Error(), "hidden")
}

func TestTheSectionOutboxIsChecked(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"outbox: on":                             "outbox: must be",
		"outbox: []":                             "outbox: must be",
		"{outbox: {full: drop}, ack: published}": "outbox.full: must not be drop with ack published",
	} {
		_, err := load(t, write(t, text))
		assert.ErrorContains(t, err, want, text)
	}
}

// What -config.print and /-/config show holds no password.
func TestPasswordsAreNotShown(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, write(t, "users: [{name: a, password: hidden}]\nredis: {url: 'redis://u:hidden@h'}"))
	require.NoError(t, err)
	text, err := config.YAML(cfg)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "hidden")
	assert.Contains(t, string(text), "name: a\n    password: <redacted>")
}

func TestURLsOfRedis(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis://h": "", "redis://h:1/": "", "rediss://h:1/0": "", "redis://u:p@h:1": "",
		"redis://h/1": "name no database", "redis://": "must be redis://host:port", "unix:///x": "must be redis://host:port", "redis://h?db=1": "must be redis://host:port",
	} {
		_, err := load(t, write(t, "{}"), "SONIC_REDIS_URL="+url)
		if want == "" {
			assert.NoError(t, err, url)
		} else if assert.Error(t, err, url) {
			assert.Contains(t, err.Error(), want)
		}
	}
	_, err := load(t, write(t, "redis: {url: 'redis://u:secret@h', username: v}"))
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "secret")
}
