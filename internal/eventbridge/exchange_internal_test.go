package eventbridge

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAnExportReplacesItsFileInOneStep: what was there before stays until all is written, and when that fails.
func TestAnExportReplacesItsFileInOneStep(t *testing.T) {
	folder := t.TempDir()
	file, link := filepath.Join(folder, "registry.yaml"), filepath.Join(folder, "link.yaml")
	holds := func(want string) {
		t.Helper()
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, string(text))
	}
	text := func(text string, before func(), err error) func(io.Writer) error {
		return func(w io.Writer) error {
			_, e := io.WriteString(w, text)
			before()
			return errors.Join(e, err)
		}
	}
	require.NoError(t, writeFile(file, text("first", func() {}, nil)))
	holds("first")
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	require.NoError(t, os.Chmod(file, 0o640))
	require.NoError(t, os.Symlink(file, link))

	fault := errors.New("a fault")
	require.ErrorIs(t, writeFile(link, text("half", func() { holds("first") }, fault)), fault)
	holds("first")
	require.NoError(t, writeFile(link, text("second", func() { holds("first") }, nil)))
	holds("second")
	info, err = os.Lstat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), info.Mode())
	info, err = os.Lstat(link)
	require.NoError(t, err)
	require.NotZero(t, info.Mode()&os.ModeSymlink)
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, left, 2, "nothing else is left")

	require.NoError(t, writeFile(os.DevNull, text("gone", func() {}, nil)), "what is no file is written to")
}

// TestAnImportNamesItsFile: of several imports in a script it has to be clear which one failed.
func TestAnImportNamesItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registry.yaml")
	err := (&service{cfg: Config{Import: file}}).exchange(t.Context())
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "-import "+file+": ")
}
