package setup_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/stack"
)

// One route writes to a topic, and another one reads it: the subscription of the second is created
// in the same run.
func TestATopicIsDestinationAndSource(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	for _, first := range []bool{true, false} {
		own, source := setup.Topic{Path: "routes[0].to", Name: w.topic("chain")}, setup.Topic{Path: "routes[1].source", Name: w.topic("chain"), OthersCreateIt: true, Subscriptions: map[string]messaging.Position{"ours": {}}}
		if first {
			w.Topics = []setup.Topic{own, source}
		} else {
			own.Name, source.Name = w.topic("chain2"), w.topic("chain2")
			w.Topics = []setup.Topic{source, own}
		}
		plan, _, err := w.run(false)
		require.NoError(t, err)
		assert.Regexp(t, `\+ topic persistent://TENANT/n/chain2?: no partitions\n\+ topic persistent://TENANT/n/chain2?: subscription ours`, plan)
		w.apply()
	}
}

// The sections of sink and source differ: the second plan does not know what the first one creates.
func TestATopicIsDestinationAndSourceOfTwoSections(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	second := setup.Cluster{Path: "routes[1].source.pulsar", Pulsar: w.Pulsar, Topics: []setup.Topic{
		{Path: "routes[1].source", Name: w.topic("wide"), OthersCreateIt: true, Subscriptions: map[string]messaging.Position{"ours": {}}},
	}}
	_, err := setup.Run(t.Context(), []setup.Cluster{w.Cluster, second}, true, "", io.Discard)
	require.NoError(t, err)
	w.Cluster = second
	w.nothingToChange()
}

// Two routes with partition: source write to one topic, from sources of 3 and 5 partitions.
func TestATopicIsWantedTwice(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	w.Topics = []setup.Topic{{Path: "routes[0].to", Name: w.topic("both"), Partitions: 3}, {Path: "routes[1].to", Name: w.topic("both"), Partitions: 5}}
	text := w.apply()
	require.Contains(t, text, "+ topic persistent://TENANT/n/both: 5 partitions\n")
	require.NotContains(t, text, "both: 3")
}

// setup.partitions at its default, and a topic with 8 partitions that has been in use for long.
func TestATopicWithMorePartitionsStays(t *testing.T) {
	t.Parallel()
	w := full(t, stack.Pulsar(t))
	w.apply()
	c := setup.Cluster{Path: w.Path, Pulsar: w.Pulsar}
	c.AddTopic(setup.Topic{Path: "topic", Name: w.topic("wide"), WhyNoGrowth: "a series would move to another partition, and its samples would lose their order"}, setup.Section{Policies: setup.Defaults()})
	w.Cluster = c
	w.nothingToChange()
}
