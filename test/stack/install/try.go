package install

import (
	"context"
	"fmt"
	"time"

	"github.com/aviaryhq/aviary/test/stack/process"
)

const (
	attempts = 3
	pause    = 4 * time.Second
)

// Try fetches something from the network, three times at most, with a pause between. It returns the
// last error, or that of ctx when ctx ends.
func Try(ctx context.Context, log *process.Progress, fetch func(context.Context) error) error {
	for n := 1; ; n++ {
		err := fetch(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case n == attempts:
			return fmt.Errorf("after %d attempts: %w", attempts, err)
		}
		log.Printf("attempt %d of %d failed, the next one follows in %v: %v", n, attempts, pause, err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(pause):
		}
	}
}
