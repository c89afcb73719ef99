package app

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
)

// OnReload registers what takes a new configuration over while the process runs, after a SIGHUP: change is called with one that is valid, and
// changes nothing when it returns an error. What the common part of the configuration says stays as it is until the next start. T is the
// program's configuration.
func OnReload[T Configuration](r *Runtime, change func(ctx context.Context, cfg T) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reload = func(ctx context.Context, cfg any) error { return change(ctx, cfg.(T)) } //nolint:errcheck,forcetypeassert // reload has the same T
}

// reload reads the configuration again and hands it over. A faulty one changes nothing.
func reload[T Configuration](ctx context.Context, r *Runtime, spec config.Spec[T]) {
	r.mu.Lock()
	change := r.reload
	r.mu.Unlock()
	if change == nil {
		r.Log.Warn("received SIGHUP: this service reads its configuration at its start only")
		return
	}
	spec.Again = true
	loaded, err := config.Load(spec)
	if err == nil {
		err = change(ctx, loaded.Config)
	}
	if err != nil {
		r.Log.Error("configuration not changed", zap.Error(err))
		var faults *config.Error
		if errors.As(err, &faults) {
			for _, fault := range faults.Faults {
				r.Log.Error("configuration fault", zap.String("path", fault.Path), zap.Error(fault))
			}
		}
		return
	}
	r.config.Store(any(loaded.Config))
	r.Log.Info("configuration changed", zap.String("config", loaded.Source))
}
