package configuration_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
)

// TestFiles: configs has what -config.print prints, and the page of each service has its keys.
func TestFiles(t *testing.T) {
	for _, service := range services() {
		t.Run(service.name, func(t *testing.T) {
			t.Parallel()
			listed := config.Keys(service.name, service.defaults)
			compare(t, root+"configs/"+service.name+".yaml", listed)

			page := root + "docs/" + service.name + ".md"
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			before, after, found := strings.Cut(string(text), "<!-- options: make configs writes them -->\n")
			require.True(t, found, page)
			_, after, found = strings.Cut(after, "<!-- end of options -->\n")
			require.True(t, found, page)
			compare(t, page, before+"<!-- options: make configs writes them -->\n"+options(listed)+"<!-- end of options -->\n"+after)
		})
	}
}

// compare compares a file with what it should have, or writes it.
func compare(t *testing.T, file, want string) {
	t.Helper()
	if update() {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o600))
	}
	got, err := os.ReadFile(file)
	require.NoError(t, err)
	assert.Equal(t, want, string(got), "keys have changed: make configs")
}

var (
	listedLine = regexp.MustCompile(`^([ #]*)(- *$|[^\n]*)`)
	listedKey  = regexp.MustCompile(`^([A-Za-z0-9_]+):(?: (.*?))?(?: # [A-Z0-9_]+)?$`)
	sentence   = regexp.MustCompile(`^(.*?[^.]\.)(?: .*)?$`)
)

// options returns the keys of a listing as a table in Markdown, with the first sentence of each
// meaning. Sections have no row. Sections that are alike have one table of keys: that of the first.
func options(listed string) string {
	type open struct {
		column int
		path   string
	}
	var table, meaning strings.Builder
	table.WriteString("| key | default | meaning |\n|---|---|---|\n")
	var parents []open
	for line := range strings.Lines(listed) {
		m := listedLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		marks, text := m[1], m[2]
		if strings.HasSuffix(marks, "# ") && !strings.HasSuffix(marks, "  ") { // a comment for people
			meaning.WriteString(text + " ")
			continue
		}
		column := len(strings.ReplaceAll(marks, "#", ""))
		for len(parents) > 0 && parents[len(parents)-1].column >= column {
			parents = parents[:len(parents)-1]
		}
		path := ""
		if len(parents) > 0 {
			path = parents[len(parents)-1].path
		}
		if text == "-" {
			parents = append(parents, open{column, path + "[]"})
			continue
		}
		key := listedKey.FindStringSubmatch(text)
		if key == nil {
			continue
		}
		path = strings.TrimPrefix(path+"."+key[1], ".")
		parents = append(parents, open{column, path})
		if key[2] != "" && !strings.Contains(path, "dead_letter.sink.") {
			first := sentence.ReplaceAllString(strings.TrimSpace(meaning.String()), "$1")
			fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", path, key[2], strings.ReplaceAll(first, "|", "\\|"))
		}
		meaning.Reset()
	}
	return table.String()
}
