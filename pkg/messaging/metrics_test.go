package messaging_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/fakebroker"
)

// Counters that alerts watch are there before they count anything: the first failure is a rise from
// 0, which rate() and increase() see. Names and help texts are as promtool wants them.
func TestMetricsAreThereFromTheStart(t *testing.T) {
	t.Parallel()
	s := fakebroker.Start(t)
	reg := prometheus.NewRegistry()
	client := dial(t, s.URL(), messaging.WithRegisterer(reg))
	open(t, client, topic, nil)
	openReader(t, client, nil)
	r := start(t, client, consumerConfig(topic, messaging.Shared), func(context.Context, *messaging.Delivery) error { return nil })
	require.NoError(t, s.WaitConsumers(testContext(t), topic, "sub", 1))
	for name, reasons := range map[string]int{
		"aviary_messaging_failed_copies_total": 5, "aviary_messaging_resubscribes_total": 11, "aviary_messaging_producers_recreated_total": 9,
		"aviary_messaging_unreadable_messages_total": 3,
		"aviary_messaging_reader_resubscribes_total": 8, "aviary_messaging_handled_messages_total": 7, "aviary_messaging_published_records_total": 2,
	} {
		n, err := testutil.GatherAndCount(reg, name)
		require.NoError(t, err)
		assert.Equal(t, reasons, n, name)
	}
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	for _, p := range problems {
		assert.NotContains(t, p.Metric, "aviary_", p.Text)
	}
	r.stop(t)
}
