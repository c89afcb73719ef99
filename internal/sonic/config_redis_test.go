package sonic_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
)

// A case with several faults holds each of them, one a line.
func TestClustersOfRedis(t *testing.T) {
	t.Parallel()
	const addresses = "redis: {url: 'redis://a:1,b:2'}\n"
	const others = addresses + "zones: [default, b]\n"
	for text, want := range map[string]string{
		"redis: {cluster: true}":                                                 "",
		"redis: {cluster: true, split_mset: true, url: 'redis://a'}":             "",
		"redis: {url: 'redis://a,b:2,[::1]:3,[::1]'}":                            "",
		"redis: {url: 'rediss://u:p@a:1,b:2/0', tls: {insecure: true}}":          "",
		"redis: {url: 'redis://a:1,b:2', username: u, password: p}":              "",
		addresses + "conflicts: [{prefix: '', policy: lww}]\nzones: [default]":   "",
		addresses + "ack: published\nflush: zone\noutbox: {full: fail}":          "",
		"redis: {split_mset: true}":                                              "redis.split_mset: is of no use without a Redis Cluster",
		"redis: {split_mset: true, cluster: false, url: 'redis://a'}":            "redis.split_mset: is of no use without a Redis Cluster",
		"redis: {cluster: true, url: 'redis://'}":                                "redis.url: must be redis://host:port",
		"redis: {url: 'redis://a:1,'}":                                           "redis.url: must name host or host:port as address 2",
		"redis: {url: 'redis://,a:1'}":                                           "redis.url: must name host or host:port as address 1",
		"redis: {url: 'redis://a:1,b:x,c:0,d:4,d:4,e,e:6379'}":                   "redis.url: must name host or host:port as address 2\nredis.url: must name a port from 1 to 65535, got 0 as address 3\nredis.url: must name each address once, address 5 is address 4 again\nredis.url: must name each address once, address 7 is address 6 again",
		"redis: {url: 'redis://a:1,b:99999/1'}":                                  "redis.url: must name a port from 1 to 65535, got 99999 as address 2\nredis.url: must name no database",
		"redis: {url: 'redis://a:1,redis://b:1'}":                                "redis.url: must",
		"redis: {url: 'http://a:1,b:2'}":                                         "redis.url: must be redis://host:port",
		"redis: {url: 'redis://u:hidden@a:1,u:hidden@b:1'}":                      "redis.url: must be redis://host:port or rediss://host:port, of a Redis Cluster redis://host:port,host:port, with a user in front of the first host only",
		"redis: {url: 'redis://u:hidden,x/y@a:1'}":                               "redis.url: must",
		"redis: {url: 'redis://u:hidden@a:1,b:2', username: v}":                  "redis.url: must hold no user with username",
		"redis: {cluster: true, sentinel: {master: m, addresses: ['h:1']}}":      "redis.sentinel: must not be set with a Redis Cluster",
		"redis: {url: 'redis://a,b', sentinel: {master: m, addresses: ['h:1']}}": "redis.sentinel: must not be set with a Redis Cluster",
		addresses + "conflicts: [{prefix: 'x', policy: lww}]":                    "conflicts: must be lww for all keys in front of a Redis Cluster",
		addresses + "conflicts: [{policy: none}]":                                "conflicts: must be lww for all keys in front of a Redis Cluster",
		addresses + "publish: replicate":                                         "publish: must be relay in front of a Redis Cluster",
		"redis: {cluster: true}\nzones: [default, b]\npublish: replicate\npeers: [{zone: b, redis: {url: 'redis://a:1,b:2'}}]": "publish: must be relay in front of a Redis Cluster",
		others: "",
		others + "conflicts: [{prefix: 'n:', policy: counter}, {policy: none}]\noutbox: {full: fail, bytes: 1MiB}": "",
		others + "flush: zone":                   "flush: must be refuse in front of a Redis Cluster with other zones",
		others + "flush: replicate":              "flush: must be refuse in front of a Redis Cluster with other zones",
		others + "ack: published":                "ack: must be local in front of a Redis Cluster with other zones",
		others + "outbox: {full: drop, age: 1m}": "outbox.full: must be block or fail in front of a Redis Cluster\noutbox.age: must be 0 in front of a Redis Cluster",
		"zones: [default, b]\npeers: [{zone: b, redis: {url: 'redis://a:1', cluster: true}}]": "",
	} {
		_, err := load(t, write(t, text))
		if want == "" {
			assert.NoError(t, err, text)
			continue
		}
		if assert.Error(t, err, text) {
			for line := range strings.Lines(want) {
				assert.Contains(t, err.Error(), "\n  "+strings.TrimSpace(line), text)
			}
			assert.NotContains(t, err.Error(), "hidden", text)
		}
	}
}

func TestClusterByTheEnvironment(t *testing.T) {
	t.Parallel()
	cfg, err := load(t, write(t, "{}"), "SONIC_REDIS_CLUSTER=true", "SONIC_REDIS_SPLIT_MSET=true", "SONIC_REDIS_URL=redis://u:hidden@a:1,b:2")
	require.NoError(t, err)
	assert.True(t, cfg.Redis.Cluster)
	assert.True(t, cfg.Redis.SplitMSET)
	text, err := config.YAML(cfg)
	require.NoError(t, err)
	assert.Contains(t, string(text), "url: redis://u:<redacted>@a:1,b:2\n")
}

func TestSentinelsOfRedis(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"{sentinel: {master: m, addresses: ['h:1', 'h:2']}}":                                     "",
		"{url: 'redis://', sentinel: {master: m, addresses: ['h:1']}}":                           "",
		"{url: 'rediss://u:p@', tls: {insecure: true}, sentinel: {master: m, addresses: [h:1]}}": "",
		"{tls: {insecure: true}, sentinel: {master: m, addresses: ['h:1'], tls: true}}":          "",
		"{tls: {insecure: true}, sentinel: {master: m, addresses: ['h:1']}}":                     "redis.tls: is of no use without rediss://",
		"{url: 'redis://h', sentinel: {master: m, addresses: ['h:1']}}":                          "redis.url: must name no host with sentinel",
		"{url: 'redis://'}": "redis.url: must be redis://host:port",
		"{url: 'redis:///1', sentinel: {master: m, addresses: ['h:1']}}":                 "redis.url: must name no database",
		"{sentinel: {addresses: ['h:1']}}":                                               "redis.sentinel.master: must be the name",
		"{sentinel: {master: m}}":                                                        "redis.sentinel.addresses: must name at least one",
		"{sentinel: {master: m, addresses: [h]}}":                                        `redis.sentinel.addresses[0]: must be host:port, got "h"`,
		"{sentinel: {master: m, addresses: ['h:1', 'h:1']}}":                             "redis.sentinel.addresses[1]: must be unique",
		"{sentinel: {master: m, addresses: ['h:1'], password: x, password_file: /none}}": "redis.sentinel.password_file",
	} {
		_, err := load(t, write(t, "redis: "+text))
		if want == "" {
			assert.NoError(t, err, text)
		} else if assert.Error(t, err, text) {
			assert.Contains(t, err.Error(), want)
		}
	}
	_, err := load(t, write(t, "zones: [default, b]\npeers: [{zone: b, redis: {url: 'redis://b'}}]"))
	require.NoError(t, err, "what a peer's section does not say has defaults")
}
