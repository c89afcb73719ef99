// Package documents checks what the documents say of each other.
package documents

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

// documents are the paths of all Markdown files, from the root.
func documents(t *testing.T) []string {
	t.Helper()
	var found []string
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md", "deployments/*/*.md"} {
		paths, err := filepath.Glob(filepath.Join(root, pattern))
		require.NoError(t, err)
		for _, path := range paths {
			relative, err := filepath.Rel(root, path)
			require.NoError(t, err)
			found = append(found, relative)
		}
	}
	require.Greater(t, len(found), 20)
	return found
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(text)
}

// number is a figure as it is written: 816,000 or 0.95.
var number = regexp.MustCompile(`\d+(?:,\d{3})*(?:\.\d+)?`)

// measure is a number with a unit of what is measured: a rate, a duration, memory or a ratio.
var measure = regexp.MustCompile(number.String() + `(?: (?:ms|µs|us|MiB|GiB|times)\b|(?: [a-z]+)?/s\b)`)

// figures are the numbers of a text, without those of its links and code.
func figures(text string) []string {
	return number.FindAllString(regexp.MustCompile("\\]\\([^)]*\\)|`[^`]*`").ReplaceAllString(text, ""), -1)
}

// docs/benchmarks.md has the measurements. README repeats some of them and has no others. Other
// documents repeat them in paragraphs that link to it. ADRs have the figures of their day.
func TestFiguresAreThoseOfTheBenchmarks(t *testing.T) {
	const benchmarks = "docs/benchmarks.md"
	measured := make(map[string]bool)
	for _, figure := range figures(read(t, benchmarks)) {
		measured[figure] = true
	}
	_, section, found := strings.Cut(read(t, "README.md"), "\n## Measured\n")
	require.True(t, found)
	section, _, _ = strings.Cut(section, "\n## ")
	places := map[string][]string{"README.md": {section}}
	places["README.md"] = append(places["README.md"], measure.FindAllString(read(t, "README.md"), -1)...)
	for _, path := range documents(t) {
		if path == "README.md" || path == benchmarks || strings.HasPrefix(path, "docs/adr/") {
			continue
		}
		for _, paragraph := range paragraphs(read(t, path)) {
			if strings.Contains(paragraph, "[measured](benchmarks.md") {
				places[path] = append(places[path], paragraph)
			}
		}
	}
	require.Contains(t, places, "docs/operations-eventbridge.md")
	for path, texts := range places {
		for _, text := range texts {
			for _, figure := range figures(text) {
				assert.True(t, measured[figure], "%s has %s, which %s does not have, in:\n%s", path, figure, benchmarks, text)
			}
		}
	}
}

// paragraphs are the parts of a text between blank lines, and the items of its lists.
func paragraphs(text string) []string {
	return regexp.MustCompile(`\n\s*\n|\n\s*- `).Split(text, -1)
}

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading  = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
	fenced   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
)

// Links lead to files, and to headings, that exist.
func TestLinksLeadSomewhere(t *testing.T) {
	checked := 0
	for _, path := range documents(t) {
		for _, match := range link.FindAllStringSubmatch(fenced.ReplaceAllString(read(t, path), ""), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			file, anchor, _ := strings.Cut(match[1], "#")
			target := path
			if file != "" {
				target = filepath.Join(filepath.Dir(path), file)
				_, err := os.Stat(filepath.Join(root, target))
				assert.NoError(t, err, "a link of %s", path)
			}
			if anchor != "" {
				assert.Contains(t, anchors(read(t, target)), anchor, "a link of %s", path)
			}
			checked++
		}
	}
	require.Greater(t, checked, 100)
}

// anchors are the names that headings get where Markdown is shown. A number tells equal ones apart.
func anchors(text string) []string {
	var all []string
	seen := make(map[string]int)
	for _, match := range heading.FindAllStringSubmatch(fenced.ReplaceAllString(text, ""), -1) {
		name := strings.ToLower(match[1])
		name = noAnchor.ReplaceAllString(name, "")
		name = strings.ReplaceAll(name, " ", "-")
		seen[name]++
		if n := seen[name]; n > 1 {
			name += "-" + strconv.Itoa(n-1)
		}
		all = append(all, name)
	}
	return all
}

// docs/README.md is the map. It and the list of decisions link to every document.
func TestMapHasEveryDocument(t *testing.T) {
	linked := make(map[string]bool)
	for _, folder := range []string{"docs", "docs/adr"} {
		for _, match := range link.FindAllStringSubmatch(read(t, folder+"/README.md"), -1) {
			linked[filepath.Join(folder, match[1])] = true
		}
	}
	for _, path := range documents(t) {
		if strings.HasPrefix(path, "docs/") && path != "docs/README.md" {
			assert.True(t, linked[path], "docs/README.md does not have %s", path)
		}
	}
}

// place is a path of the repository, as documents name it.
var place = regexp.MustCompile("`((?:cmd|configs|deployments|docs|examples|internal|pkg|test|third_party)/[A-Za-z0-9_./*-]*)`")

// Files and packages that documents name are there. The changelog has the names of their day.
func TestNamedFilesExist(t *testing.T) {
	checked := 0
	for _, path := range documents(t) {
		if path == "CHANGELOG.md" {
			continue
		}
		for _, match := range place.FindAllStringSubmatch(read(t, path), -1) {
			if strings.Contains(match[1], "NAME") || strings.Contains(match[1], "NNNN") {
				continue // of a file to write
			}
			found, err := filepath.Glob(filepath.Join(root, strings.TrimSuffix(match[1], "/...")))
			require.NoError(t, err)
			assert.NotEmpty(t, found, "%s names %s", path, match[1])
			checked++
		}
	}
	require.Greater(t, checked, 50)
}
