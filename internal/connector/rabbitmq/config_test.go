package rabbitmq

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
)

func TestDefaultsAreValid(t *testing.T) {
	source := DefaultSourceConfig()
	source.Queues = []Queue{{Name: "q"}}
	assert.Empty(t, config.Validate(source))
	assert.Empty(t, config.Validate(DefaultSinkConfig()))
}

func TestFaults(t *testing.T) {
	source := func(change func(*SourceConfig)) any {
		c := DefaultSourceConfig()
		c.Queues = []Queue{{Name: "q"}}
		change(&c)
		return c
	}
	sink := func(change func(*SinkConfig)) any {
		c := DefaultSinkConfig()
		change(&c)
		return c
	}
	for want, cfg := range map[string]any{
		"url: must not hold a user name or password": sink(func(c *SinkConfig) { c.URL = "amqp://guest:secret@host" }),
		"url: must be amqp://":                       sink(func(c *SinkConfig) { c.URL = "http://host" }),
		"url: must not hold parameters":              sink(func(c *SinkConfig) { c.URL = "amqp://host?heartbeat=1" }),
		"tls: has no effect":                         sink(func(c *SinkConfig) { c.TLS.Insecure = true }),
		"tls.cert_file: must be given":               sink(func(c *SinkConfig) { c.URL, c.TLS.CertFile = "amqps://host", "f" }),
		"auth: must be one of":                       sink(func(c *SinkConfig) { c.Auth = "kerberos" }),
		"auth: external needs":                       sink(func(c *SinkConfig) { c.Auth = authExternal }),
		"password_file: must name a readable file":   sink(func(c *SinkConfig) { c.Password, c.PasswordFile = "", "/nowhere" }),
		"tls.ca_file: must name a readable file of":  sink(func(c *SinkConfig) { c.URL, c.TLS.CAFile = "amqps://a", "/nowhere" }),
		"tls.cert_file: must name a readable file":   sink(func(c *SinkConfig) { c.URL, c.TLS.CertFile, c.TLS.KeyFile = "amqps://a", "/nowhere", os.DevNull }),
		"tls.key_file: must name a readable file":    sink(func(c *SinkConfig) { c.URL, c.TLS.CertFile, c.TLS.KeyFile = "amqps://a", os.DevNull, "/nowhere" }),
		"password_file: give password or":            sink(func(c *SinkConfig) { c.Password, c.PasswordFile = "p", os.DevNull }),
		"heartbeat: must be whole seconds":           sink(func(c *SinkConfig) { c.Heartbeat = 1500 * time.Millisecond }),
		"window: must be from 1":                     sink(func(c *SinkConfig) { c.Window = 0 }),
		"channels: must be from 1 to 64":             sink(func(c *SinkConfig) { c.Channels = 65 }),
		"window_bytes: must be > 0":                  sink(func(c *SinkConfig) { c.WindowBytes = 0 }),
		"exchange: must have at most":                sink(func(c *SinkConfig) { c.Exchange = strings.Repeat("x", 256) }),
		"queues: must name":                          source(func(c *SourceConfig) { c.Queues = nil }),
		"queues[1].name: \"q\" occurs twice":         source(func(c *SourceConfig) { c.Queues = append(c.Queues, Queue{Name: "q"}) }),
		"queues[0].name: must have 1":                source(func(c *SourceConfig) { c.Queues[0].Name = "" }),
		"queues[0].type: must be one of":             source(func(c *SourceConfig) { c.Queues[0].Type = "lazy" }),
		"queues[0].type: a stream allows":            source(func(c *SourceConfig) { c.Queues[0].Type, c.ParallelConsumers = typeStream, 2 }),
		"queues[0].offset: has no effect":            source(func(c *SourceConfig) { c.Queues[0].Offset = "first" }),
		"queues[0].offset: must be first":            source(func(c *SourceConfig) { c.Queues[0].Type, c.Queues[0].Offset = typeStream, "-1" }),
		"queues[0].arguments: use type":              source(func(c *SourceConfig) { c.Queues[0].Arguments = map[string]any{argQueueType: typeQuorum} }),
		"queues[0].arguments: a: must be a text": source(func(c *SourceConfig) {
			c.Queues[0].Arguments = map[string]any{"a": []any{"b"}}
		}),
		"queues[0].bindings[0].exchange": source(func(c *SourceConfig) { c.Queues[0].Bindings = []Binding{{Key: "k"}} }),
		"parallel_consumers: must be":    source(func(c *SourceConfig) { c.ParallelConsumers = 0 }),
		"declare: must be one of":        source(func(c *SourceConfig) { c.Declare = "maybe" }),
		"prefetch_bytes: must be at":     source(func(c *SourceConfig) { c.PrefetchBytes = 1 }),
		"prefetch: must be from 1":       source(func(c *SourceConfig) { c.Prefetch = 65536 }),
		"drain_timeout: must be > 0":     source(func(c *SourceConfig) { c.DrainTimeout = 0 }),
	} {
		t.Run(want, func(t *testing.T) {
			found := config.Validate(cfg)
			require.Len(t, found, 1, "%v", found)
			assert.True(t, strings.HasPrefix(found[0].Error(), want), "%s", found[0])
			assert.NotContains(t, found[0].Error(), "secret")
		})
	}
}
