package eventbridge

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// TestAnExportReplacesItsFileInOneStep: what was there before stays until all is written, and when
// that fails.
func TestAnExportReplacesItsFileInOneStep(t *testing.T) {
	folder := t.TempDir()
	file := filepath.Join(folder, "registry.yaml")
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

	fault := errors.New("a fault")
	require.ErrorIs(t, writeFile(file, text("half", func() { holds("first") }, fault)), fault)
	holds("first")
	require.NoError(t, writeFile(file, text("second", func() { holds("first") }, nil)))
	holds("second")
	left, err := os.ReadDir(folder)
	require.NoError(t, err)
	require.Len(t, left, 1, "no other file remains")

	link := filepath.Join(folder, "link")
	require.NoError(t, os.Symlink(file, link))
	for _, other := range []string{link, folder, os.DevNull} {
		require.ErrorContains(t, writeFile(other, text("third", func() {}, nil)), "not a regular file")
	}
}

// TestAnImportNamesItsFile: of several imports in a script it has to be clear which one failed.
func TestAnImportNamesItsFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "registry.yaml")
	err := (&service{cfg: Config{Import: file}}).exchange(t.Context(), io.Discard, io.Discard)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, file)
	require.Equal(t, "-import "+file, Config{Import: file}.command())
}

// TestFaultsOfAnImportAreALineEach: by the names of buses and subscribers. A file may have a
// hundred.
func TestFaultsOfAnImportAreALineEach(t *testing.T) {
	var text strings.Builder
	err := printFaults(&model.Invalid{Faults: []model.Fault{
		{Pointer: "/format", Problem: "must be 1"},
		{Pointer: "/buses/0", Item: "bus orders", Problem: "it is odd"},
		{Pointer: "/buses/0/subscribers/1/target/url", Item: "subscriber orders/mail", Below: "/target/url", Problem: "must be a URL"},
	}}, &text)
	require.EqualError(t, err, "faults, see above: 3; nothing was changed")
	require.Equal(t, "/format: must be 1\nbus orders: it is odd\nsubscriber orders/mail: /target/url: must be a URL\n", text.String())
	text.Reset()
	require.ErrorContains(t, printFaults(&model.Invalid{Faults: []model.Fault{{Problem: "a"}}, More: 7}, &text), "8 faults, the first 1 above")
	change := fmt.Errorf("create orders: %w", &model.Invalid{Faults: []model.Fault{{Problem: "a"}}})
	require.Equal(t, change, printFaults(change, &text), "a change that failed after others")
	require.NoError(t, printFaults(nil, &text))
}
