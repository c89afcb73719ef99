package eventbridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

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
		if err := s.importFile(ctx, os.Stdout); err != nil {
			return fmt.Errorf("-import %s: %w", s.cfg.Import, err)
		}
		return nil
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

func (s *service) export(stdout io.Writer) error {
	write := func(w io.Writer) error { return s.store.Snapshot().Export(w, "") }
	if s.cfg.Export == "-" {
		return write(stdout)
	}
	return writeFile(s.cfg.Export, write)
}

// writeFile has write make a file. One that is there is replaced in one step, once all is written: a failure, or a reader meanwhile, finds what was there before.
// What is no file, such as a pipe, is written to.
func writeFile(path string, write func(io.Writer) error) (err error) {
	mode := os.FileMode(0o600)
	if file, err := filepath.EvalSymlinks(path); err == nil {
		path = file
	}
	if info, err := os.Stat(path); err == nil {
		if mode = info.Mode().Perm(); !info.Mode().IsRegular() {
			return writeTo(path, write)
		}
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = file.Close() // it is closed, or of no use
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := write(file); err != nil {
		return err
	}
	if err := errors.Join(file.Chmod(mode), file.Sync(), file.Close()); err != nil {
		return err
	}
	return os.Rename(file.Name(), path)
}

func writeTo(path string, write func(io.Writer) error) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	return errors.Join(write(file), file.Close())
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
