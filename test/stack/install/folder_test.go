package install

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack/process"
)

// TestFolderIsMadeForItsMaker: another version of the program, or the same one elsewhere, makes a
// folder of its own.
func TestFolderIsMadeForItsMaker(t *testing.T) {
	dir := t.TempDir()
	wanted, program := filepath.Join(dir, "requirements.txt"), filepath.Join(dir, "python3")
	write := func(path, text string) { require.NoError(t, os.WriteFile(path, []byte(text), 0o755)) }
	write(wanted, "x==1")
	write(program, "#!/bin/sh\necho Python 3.11.2\n")
	i, filled := Installer{t.TempDir(), process.NewProgress(nil)}, 0
	folder := func(program string) string {
		made, err := i.Folder(t.Context(), "clients/python", wanted, []string{program, "--version"}, func(_ context.Context, dir string) error {
			filled++
			return os.WriteFile(filepath.Join(dir, "x"), nil, 0o600)
		})
		require.NoError(t, err)
		assert.FileExists(t, filepath.Join(made, "x"))
		return made
	}
	first := folder(program)
	assert.Equal(t, first, folder(program))
	require.Equal(t, 1, filled)

	other := filepath.Join(dir, "python")
	write(other, "#!/bin/sh\necho Python 3.11.2\n")
	elsewhere := folder(other)
	write(program, "#!/bin/sh\necho Python 3.13.0\n")
	newer := folder(program)
	write(wanted, "x==2")
	assert.Len(t, map[string]bool{first: true, elsewhere: true, newer: true, folder(program): true}, 4)
	assert.Equal(t, 4, filled)

	write(program, "#!/bin/sh\necho no module >&2; exit 1\n")
	_, err := i.Folder(t.Context(), "clients/python", wanted, []string{program, "--version"}, nil)
	require.ErrorContains(t, err, "no module")

	write(program, "#!/bin/sh\n")
	gone := errors.New("no network")
	_, err = i.Folder(t.Context(), "clients/python", wanted, []string{program}, func(context.Context, string) error { return gone })
	require.ErrorIs(t, err, gone)
	left, err := filepath.Glob(filepath.Join(i.Cache, "clients", "*.work"))
	require.NoError(t, err)
	assert.Empty(t, left)
}
