package eventbridge

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// namespaceTimeout bounds a request for the namespace's settings.
const namespaceTimeout = 10 * time.Second

// watchNamespace logs, once there is an ordered subscriber, which settings its order and replays
// need of the namespace, and cannot be seen there.
func (s *service) watchNamespace(ctx context.Context) error {
	ordered := make(chan struct{}, 1)
	stop := s.store.Watch(func(now *store.Snapshot) {
		if hasOrdered(now) {
			select {
			case ordered <- struct{}{}:
			default:
			}
		}
	})
	select {
	case <-ordered:
	case <-ctx.Done():
	}
	stop()
	if ctx.Err() == nil {
		s.lookAtNamespace(ctx)
	}
	<-ctx.Done()
	return nil
}

func hasOrdered(s *store.Snapshot) bool {
	for b := range s.Buses() {
		for sub := range s.Subscribers(b.Name) {
			if sub.Order.Ordered() {
				return true
			}
		}
	}
	return false
}

// lookAtNamespace asks the brokers, if the address of their admin API is set.
func (s *service) lookAtNamespace(ctx context.Context) {
	log := s.rt.Log.With(zap.String("namespace", s.cfg.Topics.Namespace))
	if !s.admin() {
		log.Info("without pulsar.admin_url it is not known whether the namespace has deduplication, which ordered subscribers need")
		return
	}
	ctx, cancel := context.WithTimeout(ctx, namespaceTimeout)
	defer cancel()
	namespace := s.client.Namespace(s.cfg.Topics.Namespace)
	switch on, set, err := namespace.Deduplication(ctx); {
	case err != nil:
		log.Warn("cannot find out whether the namespace has deduplication, which ordered subscribers need", zap.Error(err))
	case set && !on:
		log.Error("deduplication is off in the namespace: events of ordered subscribers may come twice, or late: switch it on")
	case !set:
		log.Warn("the namespace has no setting for deduplication, which ordered subscribers need: it relies on the brokers' default")
	}
	switch kept, set, err := namespace.Retention(ctx); {
	case err != nil:
		log.Warn("cannot find out the namespace's retention", zap.Error(err))
	case !set || kept.Time == 0 || kept.Size == 0:
		log.Info("the namespace has no retention of its own: replays, and detecting duplicates after a takeover, reach back only to the oldest event that an engine has not read")
	}
}
