package console

import (
	"context"
	"embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
)

//go:embed axe
var axePackage embed.FS

// axeScript returns axe-core, installed if need be. Where it cannot be had the test fails under CI
// and is skipped elsewhere.
func axeScript(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	source := t.TempDir()
	require.NoError(t, os.CopyFS(source, axePackage))
	source = filepath.Join(source, "axe")
	s, err := stack.New(stack.Config{Log: os.Stderr})
	require.NoError(t, err)
	dir, err := s.Folder(ctx, "axe", filepath.Join(source, "package-lock.json"), []string{"node", "--version"}, func(ctx context.Context, dir string) error {
		if err := os.CopyFS(dir, os.DirFS(source)); err != nil {
			return err
		}
		return s.Try(ctx, func(ctx context.Context) error {
			npm := exec.CommandContext(ctx, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
			npm.Dir = dir
			if out, err := npm.CombinedOutput(); err != nil {
				return fmt.Errorf("npm ci: %w: %s", err, out)
			}
			return nil
		})
	})
	if err != nil {
		stack.Unavailable(t, "axe-core", err)
	}
	script, err := os.ReadFile(filepath.Join(dir, "node_modules", "axe-core", "axe.min.js"))
	require.NoError(t, err)
	return string(script)
}

// accessible fails the test by what axe-core finds in the page: WCAG 2.2 up to AA, and what it
// calls best practice.
func (b *tab) accessible(name, axe string) {
	b.t.Helper()
	if !eval[bool](b, `'axe' in window`) {
		require.NoError(b.t, chromedp.Do(b.ctx, chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, err := chromedp.Run(ctx, chromedp.Evaluate[any](axe+"\n;null"))
			return err
		})))
	}
	type finding struct {
		ID    string   `json:"id"`
		Help  string   `json:"help"`
		Nodes []string `json:"nodes"`
	}
	for _, f := range eval[[]finding](b, `axe.run(document, { runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa', 'best-practice'], resultTypes: ['violations'] })
		.then((r) => r.violations.map((v) => ({ id: v.id, help: v.help, nodes: v.nodes.slice(0, 3).map((n) => n.html + ' ' + n.failureSummary) })))`) {
		b.t.Errorf("%s: axe-core: %s: %s: %q", name, f.ID, f.Help, f.Nodes)
	}
}
