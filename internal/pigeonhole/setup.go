package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/trial"
)

// sourceTimeout bounds how long a source is asked for its partitions.
const sourceTimeout = 20 * time.Second

// clusters are the Pulsar clusters of all routes.
type clusters []setup.Cluster

// at returns the cluster of a section. Sections that are equal have one.
func (all *clusters) at(path string, section connector.SetupSection) *setup.Cluster {
	cfg := section.SetupCluster()
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
	system, source := only(c.Source)
	if section, ok := source.(connector.SetupSource); ok {
		at := path + ".source." + system
		section.AddTo(all.at(at, section), at)
	}
	system, sink := only(c.Sink)
	if section, ok := sink.(connector.SetupSection); ok {
		name, fixed := c.destination()
		if !fixed {
			name = c.To
		}
		policies := wanted
		policies.Deduplication = wanted.Deduplication || c.Guarantee == EffectivelyOnce
		err = c.addDestination(ctx, all.at(path+".sink."+system, section), path+".to", sink, name, policies)
	}
	if c.DeadLetter.To == "" {
		return err
	}
	path += ".dead_letter"
	own := c.DeadLetter.Sink != nil
	if own {
		system, sink = only(*c.DeadLetter.Sink)
	}
	section, ok := sink.(connector.SetupSection)
	if !ok {
		return err
	}
	cluster := all.at(path+".sink."+system, section)
	if own && followsSource(sink) {
		return errors.Join(err, c.addDestination(ctx, cluster, path+".to", sink, c.DeadLetter.To, wanted))
	}
	cluster.AddTopic(setup.Topic{Path: path + ".to", Name: c.DeadLetter.To}, wanted) // of any number of partitions
	return err
}

// addDestination adds a topic that is published to. If messages keep the number of their partition,
// it has at least as many partitions as the source.
func (c RouteConfig) addDestination(ctx context.Context, cluster *setup.Cluster, path string, sink connector.SinkConfig, name string, wanted setup.Section) error {
	t := setup.Topic{Path: path, Name: name, Partitions: wanted.Partitions}
	_, from := only(c.Source)
	source, numbered := from.(connector.PartitionedSource)
	switch {
	case !followsSource(sink):
		t.WhyNoGrowth = "a key would move to another partition, and its messages would lose their order"
	case numbered && !strings.Contains(name, "{"):
		ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
		defer cancel()
		_, widest, err := widestTopic(ctx, source)
		switch {
		case err != nil && wanted.Partitions == 0:
			return config.Fault(path, "as many partitions as the source has, which is not known (%s): set setup.partitions", trial.Plain(err))
		case err != nil:
			cluster.Notes = append(cluster.Notes, fmt.Sprintf("%s: setup.partitions is used: it is not known how many the source has (%s)", path, trial.Plain(err)))
		case widest > 1 || wanted.Partitions > 0:
			t.Partitions = max(wanted.Partitions, widest)
		}
	}
	cluster.AddTopic(t, wanted)
	return nil
}
