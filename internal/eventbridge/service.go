package eventbridge

import (
	"context"
	"fmt"
	"time"

	"github.com/go-chi/chi/v5"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/door"
	"github.com/aviaryhq/aviary/internal/eventbridge/api"
	"github.com/aviaryhq/aviary/internal/eventbridge/engine"
	"github.com/aviaryhq/aviary/internal/eventbridge/preprocessor"
	"github.com/aviaryhq/aviary/internal/eventbridge/processor"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
	"github.com/aviaryhq/aviary/internal/eventbridge/target"
	"github.com/aviaryhq/aviary/internal/eventbridge/transform"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/pkg/secret"
)

// Build wires the service: client, registry, targets, then each role, then the server in front of all. The stop runs backwards: no more
// requests, deliveries and matches under way finished, publishers flushed, the client closed.
func Build(ctx context.Context, rt *app.Runtime, cfg Config) error {
	client, err := messaging.Dial(ctx, cfg.Pulsar, messaging.WithLogger(rt.Log), messaging.WithRegisterer(rt.Metrics))
	if err != nil {
		return err
	}
	rt.OnStop("pulsar", client.Close)
	s := &service{rt: rt, cfg: cfg, client: client, topics: registry.Topics{Namespace: cfg.Topics.Namespace}}
	if err := s.targets(); err != nil {
		return err
	}
	if err := s.registry(ctx); err != nil {
		return err
	}
	if cfg.Export != "" || cfg.Import != "" {
		return s.exchange(ctx)
	}
	rt.Go("registry", s.store.Run)
	rt.Check("registry", s.store.Check)
	router := chi.NewRouter()
	if cfg.Roles.Has(RoleEngine) {
		s.engine()
	}
	var delivering *processor.Processor
	if cfg.Roles.Has(RoleProcessor) {
		delivering = s.processor()
	}
	state := door.ConnState(nil)
	if cfg.Roles.Has(RolePreprocessor) {
		p, err := s.preprocessor()
		if err != nil {
			return err
		}
		p.Routes(router)
		state = p.ConnState
	}
	if err := s.api(router, delivering); err != nil {
		return err
	}
	return s.serve(ctx, router, state)
}
