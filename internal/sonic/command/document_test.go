package command_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/command"
)

// TestDocument keeps the table of docs/sonic-commands.md equal to the commands. With AVIARY_UPDATE=1 it
// writes it.
func TestDocument(t *testing.T) {
	const begin, end = "<!-- commands: made by internal/sonic/command, AVIARY_UPDATE=1 go test -run TestDocument -->\n", "<!-- end of commands -->"
	table, err := command.NewTable()
	require.NoError(t, err)
	path := filepath.Join("..", "..", "..", "docs", "sonic-commands.md")
	page, err := os.ReadFile(path)
	require.NoError(t, err)
	before, rest, found := strings.Cut(string(page), begin)
	require.True(t, found, "the table's beginning")
	have, after, found := strings.Cut(rest, end)
	require.True(t, found, "the table's end")
	want := table.Document()
	if os.Getenv("AVIARY_UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o600))
		return
	}
	require.Equal(t, want, have)
}
