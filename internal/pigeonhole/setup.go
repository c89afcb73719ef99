package pigeonhole

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/internal/trial"
)

// clusters are the Pulsar clusters of all routes.
type clusters []setup.Cluster

// at returns the cluster of a section. Sections that are equal have one.
func (all *clusters) at(path string, section connector.SetupSection) *setup.Cluster {
	cfg := section.SetupCluster()
	i := slices.IndexFunc(*all, func(c setup.Cluster) bool { return c.Pulsar == cfg })
	if i < 0 {
		i = len(*all)
		*all = append(*all, setup.Cluster{Path: path, Pulsar: cfg})
	}
	return &(*all)[i]
}

// Setup returns what -setup creates in each Pulsar cluster of the routes: destinations and topics of
// dead letters with their namespaces, and the subscriptions of sources.
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
		policies := wanted
		policies.Deduplication = wanted.Deduplication || c.Guarantee == EffectivelyOnce
		err = c.addDestination(ctx, all.at(path+".sink."+system, section), setup.Topic{Path: path + ".to", Name: c.To}, sink, policies)
	}
	if c.DeadLetter.To == "" {
		return err
	}
	own := c.DeadLetter.Sink != nil
	if own {
		system, sink = only(*c.DeadLetter.Sink)
	}
	if section, ok := sink.(connector.SetupSection); ok {
		cluster := all.at(path+".dead_letter.sink."+system, section)
		topic := setup.Topic{Path: path + ".dead_letter.to", Name: c.DeadLetter.To}
		if own && followsSource(sink) {
			return errors.Join(err, c.addDestination(ctx, cluster, topic, sink, wanted))
		}
		cluster.AddTopic(topic, wanted) // of any number of partitions
	}
	return err
}

// addDestination adds a topic that is published to. If messages keep the number of their partition,
// it has at least as many partitions as the source.
func (c RouteConfig) addDestination(
	ctx context.Context, cluster *setup.Cluster, t setup.Topic, sink connector.SinkConfig, wanted setup.Section,
) error {
	t.Partitions = wanted.Partitions
	_, from := only(c.Source)
	source, numbered := from.(connector.PartitionedSource)
	switch {
	case !followsSource(sink):
		t.WhyNoGrowth = "a key would move to another partition, and its messages would lose their order"
	case numbered && !strings.Contains(t.Name, "{"):
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, widest, err := widestTopic(ctx, source)
		switch {
		case err != nil && wanted.Partitions == 0:
			return config.Fault(t.Path,
				"must have as many partitions as the source, and their number is unknown (%s): set setup.partitions",
				trial.Plain(err))
		case err != nil:
			cluster.Notes = append(cluster.Notes, fmt.Sprintf(
				"%s: using setup.partitions: the number of partitions of the source is unknown (%s)", t.Path, trial.Plain(err)))
		case widest > 1 || wanted.Partitions > 0:
			t.Partitions = max(wanted.Partitions, widest)
		}
	}
	cluster.AddTopic(t, wanted)
	return nil
}
