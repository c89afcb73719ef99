package app

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/config"
)

// OnReload registers the function that takes over a new configuration after a SIGHUP. change is
// called with a valid configuration. If it returns an error, it has changed nothing. Its ctx ends
// when the process is asked to stop meanwhile, and the stop waits for it. A panic in change, or an
// error that wraps a [PanicError], stops the process in order: it is unknown then what was changed.
// The common part of the configuration stays as it is until the next start. T is the program's
// configuration.
func OnReload[T Configuration](r *Runtime, change func(ctx context.Context, cfg T) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reload = func(ctx context.Context, cfg any) error { return change(ctx, cfg.(T)) } //nolint:errcheck,forcetypeassert // reload has the same T
}

// reload reads the configuration again and passes it to the registered function. A faulty
// configuration changes nothing.
func reload[T Configuration](ctx context.Context, r *Runtime, spec config.Spec[T]) {
	select {
	case <-r.built:
	case <-ctx.Done():
		return
	}
	r.mu.Lock()
	change := r.reload
	r.mu.Unlock()
	if change == nil {
		r.Log.Warn("received SIGHUP: this service reads its configuration at its start only")
		return
	}
	spec.Again = true
	var loaded config.Loaded[T]
	err := Protect(func() (err error) {
		loaded, err = config.Load(spec)
		return err
	})
	if err != nil {
		r.unchanged(err)
		return
	}
	// The stop waits only from here on: a file that blocks must not delay it.
	if !r.beginReload(ctx) {
		r.Log.Info("configuration not changed: the process stops")
		return
	}
	defer r.endReload()
	inForce := r.config.Load()
	later := keepCommon(&loaded.Config, inForce)
	was, ok := inForce.(T)
	same := ok && config.Same(was, loaded.Config)
	err = Protect(func() error { return change(ctx, loaded.Config) })
	var panicked *PanicError
	switch {
	case errors.As(err, &panicked):
		r.fail(fmt.Errorf("changing the configuration: %w", err))
	case err != nil && ctx.Err() != nil:
		r.Log.Info("configuration not changed: the process stops")
	case err != nil:
		r.unchanged(err)
	default:
		r.config.Store(any(loaded.Config))
		if !same {
			r.Log.Info("configuration changed", zap.String("config", loaded.Source))
		} else if len(later) == 0 {
			// Files that the configuration names, for example with passwords, may have changed:
			// each service reads its own files.
			r.Log.Info("configuration read again: no key has changed", zap.String("config", loaded.Source))
		}
		if len(later) > 0 {
			r.Log.Warn("some keys take effect at the next start", zap.Strings("keys", later))
		}
	}
}

func (r *Runtime) unchanged(err error) {
	r.Log.Error("configuration not changed", zap.Error(err), Stack(err))
	var faults *config.Error
	if errors.As(err, &faults) {
		for _, fault := range faults.Faults {
			r.Log.Error("configuration fault", zap.String("path", fault.Path), zap.Error(fault))
		}
	}
}

// beginReload returns false if the process stops.
func (r *Runtime) beginReload(ctx context.Context) bool {
	select {
	case r.reloading <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if ctx.Err() != nil {
		r.endReload()
		return false
	}
	return true
}

func (r *Runtime) endReload() { <-r.reloading }

// keepCommon puts the common part that is in force into cfg, and returns the keys that this
// changes.
func keepCommon[T Configuration](cfg *T, inForce any) (later []string) {
	old, ok := inForce.(Configuration)
	if !ok {
		return nil
	}
	was, is := reflect.ValueOf(old.common()), reflect.ValueOf((*cfg).common())
	for i := range was.NumField() {
		if !reflect.DeepEqual(was.Field(i).Interface(), is.Field(i).Interface()) {
			later = append(later, was.Type().Field(i).Tag.Get("yaml"))
		}
	}
	reflect.ValueOf(cfg).Elem().FieldByName(was.Type().Name()).Set(was)
	return later
}
