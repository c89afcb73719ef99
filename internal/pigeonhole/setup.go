package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// sourceTimeout bounds how long a source is asked for its partitions.
const sourceTimeout = 20 * time.Second

// clusters are the Pulsar clusters of all routes.
type clusters []setup.Cluster

// at returns the cluster of a section. Sections that are equal have one.
func (all *clusters) at(path string, cfg messaging.Config) *setup.Cluster {
	for i, c := range *all {
		if c.Pulsar == cfg {
			return &(*all)[i]
		}
	}
	*all = append(*all, setup.Cluster{Path: path, Pulsar: cfg})
	return &(*all)[len(*all)-1]
}

// Setup returns what -setup creates in each Pulsar cluster of the routes: destinations and topics of
// dead letters with their namespaces, and the subscriptions of sources. Kafka and RabbitMQ are not
// set up.
func Setup(ctx context.Context, cfg Config) ([]setup.Cluster, error) {
	var all clusters
	for i, route := range cfg.Routes {
		if err := route.addTo(ctx, &all, fmt.Sprintf("routes[%d]", i), cfg.Setup); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (c RouteConfig) addTo(ctx context.Context, all *clusters, path string, wanted setup.Topics) error {
	if source := c.Source.Pulsar; source != nil {
		addSource(all.at(path+".source.pulsar", source.Config), path+".source.pulsar", source)
	}
	into := c.Sink
	if sink := c.Sink.Pulsar; sink != nil {
		cluster := all.at(path+".sink.pulsar", sink.Config)
		to, fixed := c.destination()
		if !fixed {
			to = c.To
		}
		topic, err := c.topic(ctx, path+".to", into, to, wanted)
		if err != nil {
			return err
		}
		policies := wanted
		policies.Deduplication = wanted.Deduplication || c.Guarantee == EffectivelyOnce
		cluster.AddTopic(topic, policies)
	}
	if !c.deadLetters() {
		return nil
	}
	path += ".dead_letter"
	topic := setup.Topic{Path: path + ".to", Name: c.DeadLetter.To} // of any number of partitions
	if own := c.DeadLetter.Sink; own != nil && own.Pulsar != nil {
		if own.Pulsar.FollowsSource() {
			var err error
			if topic, err = c.topic(ctx, topic.Path, *own, topic.Name, wanted); err != nil {
				return err
			}
		}
		all.at(path+".sink.pulsar", own.Pulsar.Config).AddTopic(topic, wanted)
	} else if own == nil && into.Pulsar != nil {
		all.at(path, into.Pulsar.Config).AddTopic(topic, wanted)
	}
	return nil
}

// topic returns a destination. If messages keep the number of their partition, it has at least as
// many partitions as the source.
func (c RouteConfig) topic(ctx context.Context, path string, to SinkConfig, name string, wanted setup.Topics) (setup.Topic, error) {
	t := setup.Topic{Path: path, Name: name, Partitions: wanted.Partitions}
	if !to.Pulsar.FollowsSource() {
		t.Fixed = "a key would move to another partition, and its messages would lose their order"
		return t, nil
	}
	_, from := c.Source.section()
	source, numbered := from.(partitionedSource)
	if !numbered || strings.Contains(name, "{") {
		return t, nil
	}
	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()
	_, widest, err := widestTopic(ctx, source)
	if len(source.Names()) == 0 {
		err = errors.New("its topics are those of a pattern")
	}
	if err != nil && wanted.Partitions == 0 {
		return t, config.Fault(path, "as many partitions as the source has, which is not known (%s): set setup.partitions", trial.Plain(err))
	}
	if widest > 1 || wanted.Partitions > 0 {
		t.Partitions = max(wanted.Partitions, widest)
	}
	return t, nil
}

// addSource adds the subscription of a source: what is published before the first start waits in it.
// Its topics belong to others.
func addSource(to *setup.Cluster, path string, source *pulsar.SourceConfig) {
	from := messaging.Earliest()
	if source.StartAt == messaging.StartLatest {
		from = messaging.Latest()
	}
	for _, topic := range source.Topics {
		to.Topics = append(to.Topics, setup.Topic{Path: path + ".topics", Name: topic, Foreign: true, Subscription: source.Subscription, From: from})
	}
	if source.Pattern != "" {
		to.Notes = append(to.Notes, path+".pattern "+source.Pattern+": its subscriptions are created when the service runs")
	}
}
