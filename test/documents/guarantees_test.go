package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var (
	testFunction = regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	namedTest    = regexp.MustCompile("^`(Test\\w+|make [a-z]+)`$")
)

// testNames returns the names of all test functions of the repository.
func testNames(t *testing.T) map[string]bool {
	t.Helper()
	names := make(map[string]bool)
	require.NoError(t, filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range testFunction.FindAllSubmatch(text, -1) {
			names[string(match[1])] = true
		}
		return err
	}))
	return names
}

// A row of the guarantees is one promise, one condition and one test that exists, in short cells.
// Tables with another header, such as those of modes, have no tests.
func TestGuarantees(t *testing.T) {
	const longest = 200
	tests := testNames(t)
	pages, err := filepath.Glob(root + "/docs/guarantees*.md")
	require.NoError(t, err)
	require.Len(t, pages, 5)
	for _, page := range pages {
		name := "docs/" + filepath.Base(page)
		rows, promises := 0, false
		for line := range strings.Lines(read(t, name)) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, "|") {
				promises = false
				continue
			}
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for _, cell := range cells {
				assert.LessOrEqual(t, len([]rune(strings.TrimSpace(cell))), longest, "%s: %s", name, cell)
			}
			switch {
			case line == "| promise | condition | test |":
				promises = true
			case promises && !strings.HasPrefix(line, "|---"):
				rows++
				if assert.Len(t, cells, 3, "%s: %s", name, line) {
					match := namedTest.FindStringSubmatch(strings.TrimSpace(cells[2]))
					if assert.NotNil(t, match, "%s names one test: %s", name, line) && strings.HasPrefix(match[1], "Test") {
						assert.True(t, tests[match[1]], "%s names %s, which does not exist", name, match[1])
					}
				}
			}
		}
		assert.Greater(t, rows, 10, name)
	}
}
