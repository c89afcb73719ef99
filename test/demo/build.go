package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// binaries are the services' programs. They are built while servers start.
type binaries struct {
	dir     string
	batches []*batch
}

// batch is what one call of go builds.
type batch struct {
	services []string
	done     chan struct{} // closed when it has ended, with err set
	err      error
}

// newBinaries takes what flows run. That of the first flow is built first: it need not wait for the
// others.
func newBinaries(dir string, flows []flow) *binaries {
	b := &binaries{dir: dir}
	first, rest := &batch{done: make(chan struct{})}, &batch{done: make(chan struct{})}
	for i, f := range flows {
		switch {
		case i == 0:
			first.services = append(first.services, f.binary)
			b.batches = append(b.batches, first)
		case slices.Contains(first.services, f.binary) || slices.Contains(rest.services, f.binary):
		default:
			rest.services = append(rest.services, f.binary)
		}
	}
	if len(rest.services) > 0 {
		b.batches = append(b.batches, rest)
	}
	return b
}

// fastCompile and fastLink halve the CPU time of the first start: no optimisation, and nothing for
// debuggers. The Makefile builds the demo with the same options, so that packages are compiled once.
const fastCompile, fastLink = "all=-N -l -dwarf=false", "-s -w"

// build compiles one batch after the other. What fails is told to those who ask for a program.
func (b *binaries) build(ctx context.Context, root string) {
	for i, batch := range b.batches {
		// Servers go before what nobody needs yet. Without cgo there is less to compile.
		job := process.Job{Dir: root, Env: []string{"CGO_ENABLED=0"}, Nice: 10 * min(i, 1)}
		argv := []string{"go", "build", "-gcflags=" + fastCompile, "-ldflags=" + fastLink, "-o", b.dir + string(filepath.Separator)}
		for _, service := range batch.services {
			argv = append(argv, "./cmd/"+service)
		}
		if out, err := job.Run(ctx, argv...); err != nil {
			batch.err = fmt.Errorf("cannot build %s: %w: %s", strings.Join(batch.services, ", "), err, strings.TrimSpace(out))
		}
		close(batch.done)
	}
}

// path waits until a program has been built.
func (b *binaries) path(ctx context.Context, service string) (string, error) {
	for _, batch := range b.batches {
		if !slices.Contains(batch.services, service) {
			continue
		}
		select {
		case <-batch.done:
			return filepath.Join(b.dir, service), batch.err
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
	return "", fmt.Errorf("no flow runs %s", service)
}
