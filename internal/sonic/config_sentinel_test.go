package sonic_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
