package sonic

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

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
		log.Info("without pulsar.admin_url it is not known whether the namespace has deduplication and retention, which Sonic needs")
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	ns := client.Namespace(name)
	on, set, err := ns.Deduplication(ctx)
	switch {
	case err != nil:
		log.Warn("cannot find out whether the namespace has deduplication, which Sonic needs", zap.Error(err))
	case set && !on:
		return fmt.Errorf("%w: deduplication is off in %s, so that an effect could be stored twice or late: switch it on", errNamespace, name)
	case !set:
		log.Warn("the namespace has no setting for deduplication, which Sonic needs: it relies on the brokers' default")
	}
	kept, set, err := ns.Retention(ctx)
	switch {
	case err != nil:
		log.Warn("cannot find out the namespace's retention", zap.Error(err))
	case !set || kept.Time == 0 || kept.Size == 0:
		log.Warn("the namespace has no retention: a Redis that starts with older data may not get its lost effects back, and then accepts no writes")
	}
	return nil
}
