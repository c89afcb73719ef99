package eventbridge

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/store"
)

// opening is the readiness check of the registry. It works before the registry is read, and says
// then what the service waits for: Pulsar may be unavailable, or its address may be wrong.
type opening struct {
	mu    sync.Mutex
	store *store.Store // nil until it was read
	err   error        // the last failure before it was read
}

// failed notes why the registry cannot be read yet.
func (o *opening) failed(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.err = err
}

// failure returns the last failure.
func (o *opening) failure() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// read notes that the registry was read.
func (o *opening) read(s *store.Store) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.store = s
}

func (o *opening) check(ctx context.Context) error {
	o.mu.Lock()
	s, err := o.store, o.err
	o.mu.Unlock()
	switch {
	case s != nil:
		return s.Check(ctx)
	case err != nil:
		return fmt.Errorf("the registry is not read yet: %w", err)
	}
	return errors.New("the registry is not read yet")
}
