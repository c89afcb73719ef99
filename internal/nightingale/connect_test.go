package nightingale

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// unreachable is an address where nobody listens.
func unreachable(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// -config.connect tells of each thing, and makes nothing.
func TestConnect(t *testing.T) {
	pulsar := stack.Pulsar(t)
	ns := pulsar.Namespace(t)
	try := func(change func(*Config)) (failed int, text string) {
		cfg := DefaultConfig()
		cfg.Pulsar.URL, cfg.Pulsar.AdminURL = pulsar.URL(), pulsar.AdminURL()
		cfg.Topic = pulsar.Topic(t, ns, 2)
		change(&cfg)
		trials, end := Connect(cfg)
		defer end()
		var out strings.Builder
		_, failed = trial.Run(t.Context(), trials, &out)
		return failed, strings.ReplaceAll(out.String(), cfg.Topic, "TOPIC")
	}
	nobody := unreachable(t)
	failed, text := try(func(*Config) {})
	assert.Zero(t, failed)
	assert.Equal(t, "  pulsar.url "+pulsar.URL()+": ok\n  pulsar.admin_url "+pulsar.AdminURL()+": ok\n  topic TOPIC: ok\n", text)

	missing := "persistent://" + ns + "/missing"
	failed, text = try(func(cfg *Config) { cfg.Topic, cfg.Pulsar.AdminURL = missing, "" })
	assert.Zero(t, failed)
	assert.Contains(t, text, "  topic TOPIC: note: does not exist yet; the first use creates it, if the broker allows that\n")
	client, err := messaging.Dial(t.Context(), messaging.Config{URL: pulsar.URL(), AdminURL: pulsar.AdminURL()})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, client.Close(context.Background())) })
	exists, err := client.Topic(missing).Exists(t.Context())
	require.NoError(t, err)
	assert.False(t, exists)

	failed, text = try(func(cfg *Config) {
		pulsar.Terminate(t, cfg.Topic)
		cfg.Topics.OverflowTopic = cfg.Topic
		cfg.Topic = "persistent://" + ns + "/{tenant}"
		cfg.Pulsar.AdminURL = "http://" + nobody
	})
	assert.Equal(t, 2, failed)
	assert.Contains(t, text, "  topic TOPIC: note: not tried: its name depends on the requests\n")
	assert.Contains(t, text, ": failed: the topic is terminated: it accepts no more messages\n")
	assert.Regexp(t, `(?m)^  pulsar.admin_url http://`+nobody+`: failed: .*connection refused$`, text)

	failed, text = try(func(cfg *Config) { cfg.Pulsar.URL = "pulsar://" + nobody })
	assert.Equal(t, 3, failed)
	assert.Contains(t, text, "  pulsar.url pulsar://"+nobody+": failed: connect: dial tcp "+nobody+": connect: connection refused\n")

	failed, text = try(func(cfg *Config) { cfg.Topic = "persistent://public/no-such-namespace/x" })
	assert.Equal(t, 1, failed)
	assert.Contains(t, text, "  topic TOPIC: failed: its namespace does not exist; -setup creates it\n")
}
