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

// The lines of a page between which its options are.
const (
	optionsBegin = "<!-- options: make configs writes them -->\n"
	optionsEnd   = "<!-- end of options -->\n"
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
			before, after, found := strings.Cut(string(text), optionsBegin)
			require.True(t, found, page)
			_, after, found = strings.Cut(after, optionsEnd)
			require.True(t, found, page)
			compare(t, page, before+optionsBegin+options(listed)+optionsEnd+after)
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
	listedLine = regexp.MustCompile(`^([ #]*)(.*)`)
	listedKey  = regexp.MustCompile(`^([A-Za-z0-9_]+):(?: (.*?))?(?: # [A-Z0-9_]+)?$`)
	sentence   = regexp.MustCompile(`^(.*?[^.]\.)(?: .*)?$`)
)

// options returns the keys of a listing as a table in Markdown, with the first sentence of each
// meaning. Sections have no row. The sink of dead letters has the keys of a route's sink, as the
// page says, and no rows.
func options(listed string) string {
	var table, meaning strings.Builder
	table.WriteString("| key | default | meaning |\n|---|---|---|\n")
	var o outline
	for line := range strings.Lines(listed) {
		m := listedLine.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		lead, text := m[1], m[2]
		if strings.HasSuffix(lead, "# ") { // a comment for people
			meaning.WriteString(text + " ")
			continue
		}
		parent := o.parent(lead)
		if text == "-" {
			o.open(lead, parent, "[]")
			continue
		}
		key := listedKey.FindStringSubmatch(text)
		if key == nil {
			continue
		}
		path := o.open(lead, parent, "."+key[1])
		if key[2] != "" && !strings.Contains(path, "dead_letter.sink.") {
			first := sentence.ReplaceAllString(strings.TrimSpace(meaning.String()), "$1")
			fmt.Fprintf(&table, "| `%s` | `%s` | %s |\n", path, key[2], strings.ReplaceAll(first, "|", "\\|"))
		}
		meaning.Reset()
	}
	return table.String()
}
