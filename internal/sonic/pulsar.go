package sonic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// dialPulsar returns a client of this zone's Pulsar, which is closed when the process stops.
func dialPulsar(ctx context.Context, rt *app.Runtime, cfg Config) (*messaging.Client, error) {
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err == nil {
		rt.OnStop("pulsar", client.Close)
	}
	return client, err
}

// dialTopics is dialPulsar, and checks the namespace of the topics.
func (s *service) dialTopics(ctx context.Context, rt *app.Runtime) (*messaging.Client, error) {
	client, err := dialPulsar(ctx, rt, s.cfg)
	if err != nil {
		return nil, err
	}
	return client, checkNamespace(ctx, client, s.cfg, rt.Log)
}

// errNamespace says that the namespace of the topics does not have a setting that Sonic needs.
var errNamespace = errors.New("the namespace of the topics cannot be used")

// namespaceTimeout bounds reading the settings of the namespace.
const namespaceTimeout = 10 * time.Second

// checkNamespace returns an error for a namespace whose deduplication is switched off, and logs a
// warning for one without retention of acknowledged messages. It needs an admin URL. It logs what
// it cannot find out.
func checkNamespace(ctx context.Context, client *messaging.Client, cfg Config, log *zap.Logger) error {
	name := client.Topic(cfg.Topic).Namespace().Name()
	log = log.With(zap.String("namespace", name))
	if cfg.Pulsar.AdminURL == "" {
		log.Info("pulsar.admin_url is not set: Sonic cannot check that the namespace has deduplication and retention, which it needs")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	ns := client.Namespace(name)
	on, set, err := ns.Deduplication(ctx)
	switch {
	case err != nil:
		log.Warn("cannot check that the namespace has deduplication, which Sonic needs", zap.Error(err))
	case set && !on:
		return fmt.Errorf("%w: deduplication is off in %s, and without it Pulsar can store an effect twice or late: switch it on", errNamespace, name)
	case !set:
		log.Warn("the namespace has no setting for deduplication, which Sonic needs: the default of the brokers applies")
	}
	kept, set, err := ns.Retention(ctx)
	switch {
	case err != nil:
		log.Warn("cannot read the retention of the namespace", zap.Error(err))
	case !set || kept.Time == 0 || kept.Size == 0:
		log.Warn("the namespace has no retention: a Redis that starts with older data may not get its lost effects back, and then accepts no writes")
	}
	return nil
}

// SetupConfig says what -setup creates, besides what Sonic always needs.
type SetupConfig struct {
	setup.Policies `yaml:",inline"`
	// Clusters are the Pulsar clusters of all zones, including this one. Each must know the others.
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
		c.Notes = append(c.Notes, "setup.clusters is empty: the replication of the namespace is not checked")
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
