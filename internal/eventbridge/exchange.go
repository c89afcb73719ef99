package eventbridge

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// exchange writes the registry to a file, or makes it what a file says, and tells what it did on standard output.
func (s *service) exchange(ctx context.Context) error {
	if s.cfg.Export != "" {
		return s.export(os.Stdout)
	}
	return s.importFile(ctx, os.Stdout)
}

func (s *service) export(stdout io.Writer) (err error) {
	to := stdout
	if s.cfg.Export != "-" {
		file, err := os.OpenFile(s.cfg.Export, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
		if err != nil {
			return err
		}
		defer func() {
			if e := file.Close(); err == nil {
				err = e
			}
		}()
		to = file
	}
	return s.store.Snapshot().Export(to, "")
}

func (s *service) importFile(ctx context.Context, stdout io.Writer) error {
	file, err := os.Open(s.cfg.Import)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	steps, err := s.store.Import(ctx, file, registry.ImportOptions{DryRun: s.cfg.DryRun, Prune: s.cfg.Prune, Lookup: os.LookupEnv})
	for _, step := range steps {
		name := "bus " + step.Bus
		if step.Subscriber != "" {
			name = "subscriber " + step.Bus + "/" + step.Subscriber
		}
		if _, e := fmt.Fprintf(stdout, "%-7s %s\n", step.Action, name); e != nil {
			return e
		}
	}
	return err
}
