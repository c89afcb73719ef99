package proxy_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
)

// What one cluster stores reaches the others, and none by a way that is cut.
func TestPulsarZones(t *testing.T) {
	zones := proxy.PulsarZones(t, 3)
	topic := "persistent://" + zones.Namespace(t) + "/crosses"
	var clients []*messaging.Client
	for i := range zones.Clusters {
		cfg := messaging.Config{URL: zones.URL(i), ListenerName: proxy.Listener}
		client, err := messaging.Dial(t.Context(), cfg)
		require.NoError(t, err)
		t.Cleanup(func() { _ = client.Close(context.Background()) })
		clients = append(clients, client)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	publisher, err := clients[0].Publisher(ctx, topic, messaging.Business())
	require.NoError(t, err)
	send := func(text string) {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		require.NoError(t, publisher.Publish(ctx, &messaging.Record{Payload: []byte(text)}))
	}
	last := func(i int) string {
		ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
		defer cancel()
		d, err := clients[i].Last(ctx, topic)
		if err != nil {
			return err.Error()
		}
		if d == nil {
			return ""
		}
		return string(d.Payload)
	}
	awaits := func(i int, text string) {
		t.Helper()
		require.EventuallyWithT(t, func(c *assert.CollectT) { assert.Equal(c, text, last(i)) }, await.Patience, 5*time.Millisecond)
	}
	send("first")
	awaits(1, "first")
	awaits(2, "first")
	zones.Links[0][1].Cut()
	send("second")
	awaits(2, "second")
	assert.Equal(t, "first", last(1), "this way is cut")
	require.NoError(t, zones.Links[0][1].Restore())
	awaits(1, "second")
}
