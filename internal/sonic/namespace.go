package sonic

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/pkg/messaging"
)

// errNamespace says that the namespace of the topics does not keep what Sonic relies on.
var errNamespace = errors.New("the namespace of the topics cannot be used")

// namespaceTimeout bounds asking for its settings.
const namespaceTimeout = 10 * time.Second

// checkNamespace refuses a namespace whose deduplication is switched off, and warns of one that keeps nothing of what was acknowledged.
// It can tell only with an admin URL; what it cannot find out it says.
func checkNamespace(ctx context.Context, client *messaging.Client, cfg Config, log *zap.Logger) error {
	name := namespaceOf(cfg.Topic)
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
		log.Warn("the namespace has no retention: a Redis that comes back older than it was may not get back what it lost, and takes no writes then")
	}
	return nil
}

// namespaceOf is tenant/namespace of a topic, whose name is valid.
func namespaceOf(topic string) string {
	parts := strings.Split(strings.TrimPrefix(topic, "persistent://"), "/")
	if len(parts) < 3 {
		return "public/default"
	}
	return parts[0] + "/" + parts[1]
}
