package documents

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestPackageComments: the comment of a package says in at most ten lines what the package is for, and
// below internal and pkg also what it imports of this repository.
func TestPackageComments(t *testing.T) {
	comments := map[string]string{}
	for _, folder := range []string{"cmd", "internal", "pkg", "test", "examples"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly|parser.ParseComments)
			if err != nil {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(path))
			if text := file.Doc.Text(); text != "" || comments[dir] == "" {
				comments[dir] = text
			}
			return err
		}))
	}
	require.NotEmpty(t, comments)
	for dir, text := range comments {
		assert.NotEmpty(t, text, dir)
		assert.LessOrEqual(t, strings.Count(text, "\n"), 10, dir)
		if strings.HasPrefix(dir, "internal") || strings.HasPrefix(dir, "pkg") {
			assert.Contains(t, text, "import", "%s: what does it import?", dir)
		}
	}
}
