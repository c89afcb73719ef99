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
	var errs []error
	for i, route := range cfg.Routes {
		errs = append(errs, route.addTo(ctx, &all, fmt.Sprintf("routes[%d]", i), cfg.Setup))
	}
	return all, errors.Join(errs...)
}

func (c RouteConfig) addTo(ctx context.Context, all *clusters, path string, wanted setup.Section) (err error) {
	if source := c.Source.Pulsar; source != nil {
		addSource(all.at(path+".source.pulsar", source.Config), path+".source.pulsar", source)
	}
	if sink := c.Sink.Pulsar; sink != nil {
		name, fixed := c.destination()
		if !fixed {
			name = c.To
		}
		policies := wanted
		policies.Deduplication = wanted.Deduplication || c.Guarantee == EffectivelyOnce
		err = c.addDestination(ctx, all.at(path+".sink.pulsar", sink.Config), path+".to", c.Sink, name, policies)
	}
	if !c.deadLetters() {
		return err
	}
	path += ".dead_letter"
	sink, sinkPath := c.Sink, path
	if c.DeadLetter.Sink != nil {
		sink, sinkPath = *c.DeadLetter.Sink, path+".sink.pulsar"
	}
	if sink.Pulsar == nil {
		return err
	}
	cluster := all.at(sinkPath, sink.Pulsar.Config)
	if c.DeadLetter.Sink != nil && sink.Pulsar.FollowsSource() {
		return errors.Join(err, c.addDestination(ctx, cluster, path+".to", sink, c.DeadLetter.To, wanted))
	}
	cluster.AddTopic(setup.Topic{Path: path + ".to", Name: c.DeadLetter.To}, wanted) // of any number of partitions
	return err
}

// addDestination adds a topic that is published to. If messages keep the number of their partition,
// it has at least as many partitions as the source.
func (c RouteConfig) addDestination(ctx context.Context, cluster *setup.Cluster, path string, sink SinkConfig, name string, wanted setup.Section) error {
	t := setup.Topic{Path: path, Name: name, Partitions: wanted.Partitions}
	_, from := c.Source.section()
	source, numbered := from.(partitionedSource)
	switch {
	case !sink.Pulsar.FollowsSource():
		t.WhyNoGrowth = "a key would move to another partition, and its messages would lose their order"
	case numbered && !strings.Contains(name, "{"):
		ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
		defer cancel()
		_, widest, err := widestTopic(ctx, source)
		if len(source.Names()) == 0 {
			err = errors.New("its topics are those of a pattern")
		}
		if err != nil && wanted.Partitions == 0 {
			return config.Fault(path, "as many partitions as the source has, which is not known (%s): set setup.partitions", trial.Plain(err))
		}
		if err != nil {
			cluster.Notes = append(cluster.Notes, fmt.Sprintf("%s: setup.partitions is used: it is not known how many the source has (%s)", path, trial.Plain(err)))
		}
		if widest > 1 || wanted.Partitions > 0 {
			t.Partitions = max(wanted.Partitions, widest)
		}
	}
	cluster.AddTopic(t, wanted)
	return nil
}

// addSource adds the subscription of a source: what is published before the first start waits in it.
// Its topics belong to others.
func addSource(cluster *setup.Cluster, path string, source *pulsar.SourceConfig) {
	from := messaging.Earliest()
	if source.StartAt == messaging.StartLatest {
		from = messaging.Latest()
	}
	for _, topic := range source.Topics {
		cluster.Topics = append(cluster.Topics, setup.Topic{
			Path: path + ".topics", Name: topic, OthersCreateIt: true, Subscriptions: map[string]messaging.Position{source.Subscription: from},
		})
	}
	if source.Pattern != "" {
		cluster.Notes = append(cluster.Notes, path+".pattern "+source.Pattern+": its subscriptions are created when the service runs")
	}
}
