package eventbridge

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry"
)

// exchange writes the registry to a file, makes it what a file says, or encrypts its secrets anew, and tells what it did on standard output.
func (s *service) exchange(ctx context.Context) error {
	switch {
	case s.cfg.Export != "":
		return s.export(os.Stdout)
	case s.cfg.Reseal:
		return s.reseal(ctx, os.Stdout)
	default:
		return s.importFile(ctx, os.Stdout)
	}
}

func (s *service) reseal(ctx context.Context, stdout io.Writer) error {
	n, err := s.store.Reseal(ctx)
	if _, e := fmt.Fprintf(stdout, "%d subscribers' secrets are encrypted by another key than before\n", n); err == nil {
		err = e
	}
	if left := len(s.store.Snapshot().Unreadable()); err == nil && left > 0 {
		err = fmt.Errorf("%d records could not be read, and stay as they are: keep their keys", left)
	}
	return err
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
		if step.Action == registry.Created && step.Subscriber != "" && s.startsInThePast(step) {
			name += " (what came before it is not delivered by an import: replay it)"
		}
		if _, e := fmt.Fprintf(stdout, "%-7s %s\n", step.Action, name); e != nil {
			return e
		}
	}
	return err
}

// startsInThePast reports whether a subscriber that was imported is to begin before now. Only the API starts the replay that this takes: an import has no processor.
func (s *service) startsInThePast(step registry.Step) bool {
	sub := s.store.Snapshot().Subscriber(step.Bus, step.Subscriber)
	return sub != nil && sub.Start != "latest"
}
