package eventbridge

import (
	"context"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
	"github.com/aviaryhq/aviary/internal/setup"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Setup returns what -setup creates: the namespace, and the topics that all instances share. The
// topics of a bus or a subscriber are created together with it.
func Setup(_ context.Context, cfg Config) ([]setup.Cluster, error) {
	topics := model.Topics{Namespace: cfg.Topics.Namespace}
	return []setup.Cluster{{
		Path: "pulsar", Pulsar: cfg.Pulsar,
		Namespaces: []setup.Namespace{{
			Path: "topics.namespace", Name: cfg.Topics.Namespace, Policies: cfg.Setup,
			Deduplication: true, KeepSubscriptions: true, NeedsRetention: true,
		}},
		Topics: []setup.Topic{
			{
				Path: "topics.namespace", Name: topics.Registry(), WhyNoPartitions: "changes of the registry have one order",
				Subscriptions: map[string]messaging.Position{store.KeepSubscription: messaging.Earliest()},
			},
			{Path: "topics.namespace", Name: topics.Status()},
		},
		Notes: []string{"topics of buses and subscribers: created with them, see the API"},
	}}, nil
}
