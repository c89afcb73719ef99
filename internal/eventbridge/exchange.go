package eventbridge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/transfer"
)

// command returns the command as it is written on the command line; empty for a service.
func (c Config) command() string {
	switch {
	case c.Export != "":
		return "-export " + c.Export
	case c.Import != "":
		return "-import " + c.Import
	case c.Reencrypt:
		return "-reencrypt"
	}
	return ""
}

// runCommand reads the registry, and runs the command. Reading ends after cfg.Timeout: nobody may
// watch a command.
func (s *service) runCommand(ctx context.Context) error {
	opening, cancel := context.WithTimeout(ctx, s.cfg.Timeout)
	defer cancel()
	err := s.openRegistry(opening)
	switch {
	case err == nil:
		err = s.exchange(ctx, os.Stdout, os.Stderr)
	case opening.Err() != nil:
		var before error // err may say no more than that the time is over
		if failed := s.waiting.Load(); failed != nil {
			before = *failed
		}
		err = fmt.Errorf("the registry could not be read within %s (-timeout): %w", s.cfg.Timeout, cmp.Or(before, s.client.Unreachable(), err))
	}
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("%s: interrupted before it was done", s.cfg.command()) // it is not a success
	}
	if err != nil {
		return fmt.Errorf("%s: %w", s.cfg.command(), err)
	}
	return nil
}

// exchange writes the registry to a file, imports a file, or encrypts the secrets again. It writes
// what it did to stdout, and faults of a file to stderr.
func (s *service) exchange(ctx context.Context, stdout, stderr io.Writer) error {
	switch {
	case s.cfg.Export != "":
		return s.export(stdout)
	case s.cfg.Reencrypt:
		return s.reencrypt(ctx, stdout)
	default:
		return printFaults(s.importFile(ctx, stdout), stderr)
	}
}

// printFaults writes a line for each fault of a file, and returns an error without them.
func printFaults(err error, w io.Writer) error {
	bad, ok := err.(*model.Invalid) //nolint:errorlint // a wrapped one is the error of one change, and says which
	if !ok {
		return err
	}
	for _, fault := range bad.Faults {
		if _, e := fmt.Fprintln(w, fault); e != nil {
			return err
		}
	}
	all := len(bad.Faults) + bad.More
	if bad.More > 0 {
		return fmt.Errorf("%d faults, the first %d above: nothing was changed", all, len(bad.Faults))
	}
	return fmt.Errorf("faults, see above: %d; nothing was changed", all)
}

func (s *service) reencrypt(ctx context.Context, stdout io.Writer) error {
	n, err := s.store.Reencrypt(ctx, s.cfg.Timeout)
	if _, e := fmt.Fprintf(stdout, "encrypted the secrets of %d subscribers with the first key\n", n); err == nil {
		err = e
	}
	if left := len(s.store.Snapshot().Unreadable()); err == nil && left > 0 {
		err = fmt.Errorf("%d records could not be read, and stay as they are: keep their keys", left)
	}
	return err
}

func (s *service) export(stdout io.Writer) error {
	if s.cfg.Export == "-" {
		return transfer.Export(stdout, s.store.Snapshot())
	}
	return writeFile(s.cfg.Export, func(w io.Writer) error { return transfer.Export(w, s.store.Snapshot()) })
}

// writeFile makes write write a file, and replaces path by it in one step once everything is
// written. Only the owner may read the file. It refuses to replace links, devices and pipes.
func writeFile(path string, write func(io.Writer) error) error {
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s exists and is not a regular file: to write to a device or a pipe, use -export - and redirect standard output", path)
	}
	file, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	if err = errors.Join(write(file), file.Sync(), file.Close()); err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}

func (s *service) importFile(ctx context.Context, stdout io.Writer) error {
	file, err := os.Open(s.cfg.Import)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	steps, err := transfer.Import(ctx, s.store, file, transfer.Options{
		DryRun: s.cfg.DryRun, Prune: s.cfg.Prune, Lookup: os.LookupEnv, Within: s.cfg.Timeout,
	})
	for _, step := range steps {
		name := "bus " + step.Bus
		if step.Subscriber != "" {
			name = "subscriber " + step.Bus + "/" + step.Subscriber
		}
		if step.Action == transfer.Created && step.Subscriber != "" && s.startsInThePast(step) {
			name += " (an import does not deliver earlier events: start a replay)"
		}
		if _, e := fmt.Fprintf(stdout, "%-7s %s\n", step.Action, name); e != nil {
			return e
		}
	}
	return err
}

// startsInThePast reports whether an imported subscriber begins before now. Only the API starts the
// replay for this: an import has no processor.
func (s *service) startsInThePast(step transfer.Step) bool {
	sub := s.store.Snapshot().Subscriber(step.Bus, step.Subscriber)
	return sub != nil && sub.Start != "latest"
}
