package pigeonhole

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// What the routes need, by clusters: those of equal sections are one.
func TestSetupOfRoutes(t *testing.T) {
	const rabbit = "source: {rabbitmq: {url: 'amqp://127.0.0.1:1/', queues: [{name: q}]}}"
	all, err := Setup(t.Context(), parse(t, `
setup: {partitions: 4, retention: {time: 1h}}
routes:
- {name: a, `+rabbit+`, sink: {pulsar: {url: 'pulsar://one:1'}}, to: persistent://t/n/a, dead_letter: {to: persistent://t/n/a-refused}}
- {name: b, `+rabbit+`, sink: {pulsar: {url: 'pulsar://one:1'}}, to: "persistent://t/n/{key}", dead_letter: {to: persistent://t/d/b, sink: {pulsar: {url: 'pulsar://two:1'}}}}
- {name: c, `+rabbit+`, sink: {pulsar: {url: 'pulsar://one:1', partition: source}}, to: persistent://t/n/c}
- {name: d, source: {pulsar: {url: 'pulsar://two:1', pattern: 'persistent://t/n/.*', subscription: s}}, sink: {rabbitmq: {url: 'amqp://127.0.0.1:1/'}}, to: q}
- {name: e, source: {pulsar: {url: 'pulsar://two:1', topics: [x], subscription: s, start_at: latest}}, sink: {rabbitmq: {url: 'amqp://127.0.0.1:1/'}}, to: q}
- {name: f, source: {kafka: {brokers: ['127.0.0.1:1'], group: g, pattern: "x.*"}}, sink: {pulsar: {url: 'pulsar://one:1', partition: source}}, to: persistent://t/n/f}
`))
	require.NoError(t, err)
	require.Len(t, all, 2)
	one, two := all[0], all[1]
	assert.Equal(t, "routes[0].sink.pulsar", one.Path)
	require.Len(t, one.Namespaces, 1)
	assert.Equal(t, "t/n", one.Namespaces[0].Name)
	const keys = "a key would move to another partition, and its messages would lose their order"
	assert.Equal(t, []setup.Topic{
		{Path: "routes[0].to", Name: "persistent://t/n/a", Partitions: 4, WhyNoGrowth: keys},
		{Path: "routes[0].dead_letter.to", Name: "persistent://t/n/a-refused"},
		{Path: "routes[2].to", Name: "persistent://t/n/c", Partitions: 4},
		{Path: "routes[5].to", Name: "persistent://t/n/f", Partitions: 4},
	}, one.Topics)
	assert.Equal(t, []string{
		"routes[1].to persistent://t/n/{key}: its topics depend on what is sent, and are not created",
		"routes[5].to: using setup.partitions: the number of partitions of the source is unknown (it has a topic pattern)",
	}, one.Notes)
	assert.Equal(t, "routes[1].dead_letter.sink.pulsar", two.Path)
	require.Len(t, two.Namespaces, 1)
	assert.Equal(t, "t/d", two.Namespaces[0].Name)
	assert.Equal(t, []setup.Topic{
		{Path: "routes[1].dead_letter.to", Name: "persistent://t/d/b"},
		{Path: "routes[4].source.pulsar.topics", Name: "x", OthersCreateIt: true, Subscriptions: map[string]messaging.Position{"s": messaging.Latest()}},
	}, two.Topics)
	_, err = Setup(t.Context(), parse(t, `
routes:
- {name: a, source: {kafka: {brokers: ['127.0.0.1:1'], group: g, pattern: "x.*"}}, sink: {pulsar: {url: 'pulsar://one:1', partition: source}}, to: persistent://t/n/a}
- {name: b, source: {kafka: {brokers: ['127.0.0.1:1'], group: h, pattern: "x.*"}}, sink: {pulsar: {url: 'pulsar://one:1', partition: source}}, to: persistent://t/n/b}
`))
	require.EqualError(t, err, "routes[0].to: must have as many partitions as the source, and their number is unknown (it has a topic pattern): set setup.partitions\n"+
		"routes[1].to: must have as many partitions as the source, and their number is unknown (it has a topic pattern): set setup.partitions")
	assert.Equal(t, []string{"routes[3].source.pulsar.pattern persistent://t/n/.*: its subscriptions are created when the service runs"}, two.Notes)
}
