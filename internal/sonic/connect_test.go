package sonic

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/test/stack"
)

// -config.connect tells of each thing, and makes nothing.
func TestConnect(t *testing.T) {
	t.Parallel()
	srv, pulsar := stack.Redis(t), stack.Pulsar(t)
	db, ns, user := srv.Client(t), pulsar.Namespace(t), srv.Name(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	unreachable := l.Addr().String()
	require.NoError(t, db.Do(t.Context(), "ACL", "SETUSER", user, "on", ">secret", "~*", "+info", "+client").Err())
	t.Cleanup(func() { assert.NoError(t, srv.Client(t).Do(context.Background(), "ACL", "DELUSER", user).Err()) })
	try := func(change func(*Config)) (failed int, text string) {
		cfg := DefaultConfig()
		cfg.Redis.URL, cfg.Pulsar.URL, cfg.Pulsar.AdminURL = srv.URL(), pulsar.URL(), pulsar.AdminURL()
		cfg.Topic = "persistent://" + ns + "/sonic"
		cfg.Zone, cfg.Zones = "a", []string{"a", "b"}
		change(&cfg)
		trials, end := Connect(cfg)
		defer end()
		var out strings.Builder
		_, failed = trial.Run(t.Context(), trials, &out)
		assert.NotContains(t, out.String(), "secret")
		return failed, out.String()
	}
	failed, text := try(func(*Config) {})
	const missing = "note: does not exist yet; the first use creates it, if the broker allows that\n"
	assert.Zero(t, failed)
	for _, want := range []string{
		"redis.url " + srv.URL() + ": ok\n", "redis: functions: ok\n", "redis: appendonly: ",
		"pulsar.url " + pulsar.URL() + ": ok\n", "pulsar.admin_url " + pulsar.AdminURL() + ": ok\n",
		"topic: namespace " + ns + ", deduplication: note: not set at the namespace, the brokers' default applies: without it Pulsar can store an effect twice or late", "topic: namespace " + ns + ", retention: ok\n",
		"topic of this zone persistent://" + ns + "/sonic-a-0: " + missing, "topic of zone a, to read persistent://" + ns + "/sonic-a-0: " + missing,
		"topic of zone b, to read persistent://" + ns + "/sonic-b-0: " + missing,
	} {
		assert.Contains(t, text, "  "+want)
	}

	// The broker says that there is no such namespace, with admin_url or without.
	failed, text = try(func(cfg *Config) {
		cfg.Pulsar.AdminURL, cfg.Topic, cfg.Zones = "", "persistent://public/"+user+"/sonic", []string{"a", "b"}
	})
	assert.Equal(t, 3, failed)
	assert.Contains(t, text, "  topic of zone b, to read persistent://public/"+user+"/sonic-b-0: failed: its namespace does not exist\n")

	failed, text = try(func(cfg *Config) {
		cfg.Redis.Username, cfg.Redis.Password, cfg.Zones, cfg.Pulsar.URL = user, "secret", nil, "pulsar://"+unreachable
		cfg.Peers = []Peer{{Zone: "b", Redis: defaultRedis()}}
		cfg.Peers[0].Redis.URL = "redis://:secret@" + unreachable
	})
	assert.Contains(t, text, "  redis: functions: failed: this user may not load functions: NOPERM ")
	assert.Contains(t, text, "  pulsar.url pulsar://"+unreachable+": failed: connect: dial tcp "+unreachable+": connect: connection refused\n")
	assert.Contains(t, text, "  zones: not tried: the check above failed\n")
	assert.Contains(t, text, "  topic of this zone persistent://"+ns+"/sonic-a-0: not tried: the check above failed\n")
	assert.Regexp(t, `(?m)^  peers\[0\].redis.url redis://:<redacted>@`+unreachable+`: failed: cannot reach Redis: .*connection refused$`, text)
	assert.Equal(t, 8, failed)

	for rules, want := range map[string]string{
		"+@all -fcall ~*":    "call functions with Sonic's own keys, which begin with {sonic:: NOPERM ",
		"+@all -fcall_ro ~*": "call functions that only read: NOPERM ",
		"+@all ~app:*":       "call functions with Sonic's own keys, which begin with {sonic:: NOPERM ",
		"+@all -@stream ~*":  "write to Sonic's own keys, which begin with {sonic:: NOPERM ",
	} {
		set := []any{"ACL", "SETUSER", user, "reset", "on", ">secret"}
		for rule := range strings.FieldsSeq(rules) {
			set = append(set, rule)
		}
		require.NoError(t, db.Do(t.Context(), set...).Err())
		_, text = try(func(cfg *Config) { cfg.Redis.Username, cfg.Redis.Password = user, "secret" })
		assert.Contains(t, text, "  redis: functions: failed: this user may not "+want, rules)
	}
	require.NoError(t, db.Do(t.Context(), "ACL", "SETUSER", user, "reset", "on", ">secret", "+@all", "~*").Err())
	failed, text = try(func(cfg *Config) { cfg.Redis.Username, cfg.Redis.Password = user, "secret" })
	assert.Zero(t, failed, text)

	_, text = try(func(cfg *Config) { cfg.Redis.Username, cfg.Redis.Password = user, "secret-and-wrong" })
	assert.Regexp(t, `(?m)^  redis.url .*: failed: this Redis cannot be the backend: it refuses INFO: WRONGPASS .*$`, text)
	assert.Contains(t, text, "  redis: functions: not tried: the check above failed\n")

	_, text = try(func(cfg *Config) {
		cfg.Redis.URL, cfg.Redis.Sentinel = defaultURL, SentinelConfig{Master: "shop", Addresses: []string{unreachable, srv.Addr()}}
	})
	assert.Regexp(t, `(?m)^  redis.sentinel.addresses\[0\] `+unreachable+`: failed: .*connection refused$`, text)
	assert.Regexp(t, `(?m)^  redis.sentinel.addresses\[1\] `+srv.Addr()+`: failed: ERR unknown command 'sentinel'.*$`, text)
	assert.Regexp(t, `(?m)^  redis.sentinel.master shop, the Redis that it names: failed: no Sentinel reports the address of "shop".*$`, text)
}
