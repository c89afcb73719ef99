package eventbridge

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/trial"
	"github.com/aviaryhq/aviary/pkg/messaging"
)

// Connect returns what -config.connect tries: Pulsar with the namespace and the registry's topic,
// and the connections of targets. Topics of buses and subscribers are in the registry, and are not
// tried.
func Connect(cfg Config) (trials []trial.Trial, end func()) {
	var all trial.List
	all.Add(trial.Pulsar("pulsar", cfg.Pulsar, cfg.tryNamespace))
	all.AddAll(cfg.Connections.Try("connections"))
	return all.Trials, all.End
}

func (c Config) tryNamespace(client *messaging.Client) []trial.Trial {
	topic := model.Topics{Namespace: c.Topics.Namespace}.Registry()
	var all []trial.Trial
	if c.Pulsar.AdminURL == "" {
		all = append(all, trial.Of("pulsar.admin_url", trial.Note("not set: buses have one partition, and the settings of the namespace are not known")))
	} else {
		ns := trial.NewNamespace(client, "topics.namespace", c.Topics.Namespace)
		all = append(trial.Admin(client, "pulsar", c.Pulsar.AdminURL, topic), ns.TenantAdmin())
		all = append(all, policies(ns)...)
	}
	return append(all, trial.Publish(client, "topics.namespace, to write", topic), trial.Consume(client, "topics.namespace, to read", topic))
}

// policies returns the trials of the settings that the namespace should have.
func policies(ns *trial.Namespace) []trial.Trial {
	return ns.Policies(false,
		"ordered subscribers need it", "replays, and the window of duplicates after a takeover, go no further back than what engines have not read")
}

// policiesTimeout bounds the requests for the namespace's settings.
const policiesTimeout = 10 * time.Second

// logPolicies logs which settings the namespace lacks: a note, because Eventbridge works without
// them, or a warning if they cannot be read. It returns when ctx ends.
func (s *service) logPolicies(ctx context.Context) error {
	if s.admin() {
		asking, cancel := context.WithTimeout(ctx, policiesTimeout)
		defer cancel()
		for _, t := range policies(trial.NewNamespace(s.client, "topics.namespace", s.cfg.Topics.Namespace)) {
			switch err := t.Try(asking); {
			case err == nil || ctx.Err() != nil:
			case trial.IsFailure(err):
				s.rt.Log.Warn("a setting of the namespace is not known", zap.String("setting", t.Name), zap.Error(err))
			default:
				s.rt.Log.Info("a setting of the namespace is missing", zap.String("setting", t.Name), zap.String("note", err.Error()))
			}
		}
	}
	<-ctx.Done()
	return nil
}
