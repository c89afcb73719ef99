package command_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	want := document(table)
	if os.Getenv("AVIARY_UPDATE") != "" {
		require.NoError(t, os.WriteFile(path, []byte(before+begin+want+end+after), 0o600))
		return
	}
	require.Equal(t, want, have)
}

// document returns the table of all commands for docs/sonic-commands.md, in Markdown: by group, one
// line for commands that are treated alike.
func document(t *command.Table) string {
	var out strings.Builder
	out.WriteString("| group | what Sonic does | commands |\n|---|---|---|\n")
	groups := map[string][]*command.Command{}
	for _, c := range t.All() {
		if c.Class != command.Container {
			groups[c.Group] = append(groups[c.Group], c)
		}
	}
	names := make([]string, 0, len(groups))
	for name := range groups {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, group := range names {
		treated := map[string][]string{}
		var order []string
		for class := range command.Classes {
			for _, c := range groups[group] {
				if c.Class != class {
					continue
				}
				how := treatment(c)
				if treated[how] == nil {
					order = append(order, how)
				}
				treated[how] = append(treated[how], "`"+strings.ToUpper(strings.ReplaceAll(c.Name, "|", " "))+"`")
			}
		}
		for _, how := range order {
			fmt.Fprintf(&out, "| %s | %s | %s |\n", group, how, strings.Join(treated[how], ", "))
		}
	}
	return out.String()
}

func treatment(c *command.Command) string {
	switch c.Name {
	case "sort", "georadius", "georadiusbymember":
		return "with `STORE` replicated, otherwise relayed"
	case "scan", "keys", "dbsize", "randomkey":
		return "relayed, without Sonic's own keys"
	case "flushall", "flushdb":
		return "refused; `flush: zone`: deletes this zone's keys; `flush: replicate`: deletes the keys of all zones"
	case "function|load", "function|delete":
		return "relayed, changes this zone only: load libraries in each zone"
	case "function|flush":
		return "changes this zone only, and keeps Sonic's own library"
	case "function|list":
		return "relayed, without Sonic's own library"
	case "info":
		return "relayed; `connected_clients` and `blocked_clients` count the clients of this Sonic"
	}
	if c.Group == "cluster" && c.Class == command.Read {
		return "relayed; in front of a Redis Cluster refused with `ERR This instance has cluster support disabled`"
	}
	switch c.Class {
	case command.Read:
		return "relayed"
	case command.Write:
		return "replicated"
	case command.Blocking:
		return "replicated; Sonic does the waiting, not Redis"
	case command.Local:
		return "relayed, changes this zone only"
	case command.Script:
		return "replicated as the state of the declared keys"
	case command.Publish:
		if c.Name == "publish" {
			return "relayed to subscribers of this zone; with `publish: replicate` to those of all zones"
		}
		return "relayed to subscribers of this zone"
	case command.Transaction:
		return "replicated as one transaction"
	case command.Connection:
		return "relayed on a separate connection for the client"
	case command.Answered:
		return "answered by Sonic"
	case command.Refused:
		return "refused: " + c.Reason
	default:
		return ""
	}
}
