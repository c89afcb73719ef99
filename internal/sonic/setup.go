package sonic

import (
	"context"

	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// SetupConfig says what -setup creates, besides what Sonic always needs.
type SetupConfig struct {
	setup.Policies `yaml:",inline"`
	// Clusters are the Pulsar clusters of all zones, this one too. They must know each other.
	// Default: not changed.
	Clusters []string `yaml:"clusters"`
}

// Setup returns what -setup creates in this zone's Pulsar: the namespace, the topics of all zones,
// and this zone's subscriptions to the others. A zone that is alone in front of a Redis Cluster uses
// no Pulsar.
func Setup(_ context.Context, cfg Config) ([]setup.Cluster, error) {
	if cfg.Redis.isCluster() && cfg.isAlone() {
		return nil, nil
	}
	c := setup.Cluster{Path: "pulsar", Pulsar: cfg.Pulsar}
	namespace, _ := setup.NamespaceOf(cfg.Topic)
	c.AddNamespace(setup.Namespace{
		Path: "topic", Name: namespace, Policies: cfg.Setup.Policies, Clusters: cfg.Setup.Clusters,
		Deduplication: true, KeepSubscriptions: true, NeedsRetention: true,
	})
	if !cfg.isAlone() && len(cfg.Setup.Clusters) == 0 {
		c.Notes = append(c.Notes, "setup.clusters is empty: whether the namespace is replicated is not looked at")
	}
	for _, zone := range cfg.zones() {
		t := setup.Topic{Path: "topic", Name: cfg.topicOf(zone), WhyNoPartitions: "the effects of a zone have one order"}
		if zone != cfg.Zone {
			t.Subscriptions = map[string]messaging.Position{cfg.applier(zone, "").Subscription(): messaging.Earliest()}
		}
		c.Topics = append(c.Topics, t)
	}
	return []setup.Cluster{c}, nil
}
