package app

import (
	"context"
	"fmt"

	"github.com/aviaryhq/aviary/internal/trial"
)

// connect runs the trials of the service, and returns the exit status.
func (p Program[T]) connect(proc process, cfg T, source string) int {
	ctx, cancel := proc.untilSignal()
	defer cancel()
	if proc.print(fmt.Sprintf("%s: the configuration is valid (%s), trying its servers, topics and permissions:\n", p.Name, source)) != exitOK {
		return exitFailed
	}
	var trials []trial.Trial
	if p.Connect != nil {
		var end func()
		trials, end = p.Connect(cfg)
		defer end()
	}
	tried, failed := trial.Run(ctx, trials, proc.stdout)
	status := proc.print(fmt.Sprintf("%s: %d of %d failed\n", p.Name, failed, tried))
	if failed > 0 {
		return exitFailed
	}
	return status
}

// untilSignal returns a context that ends at the first signal.
func (proc process) untilSignal() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-proc.signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}
