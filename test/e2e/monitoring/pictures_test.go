package monitoring

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

const (
	picturesFolder = "../../../docs/img"
	largestPicture = 150 << 10
)

// makePictures stores a picture of Prometheus' own page for each dashboard: with the first query of
// each row but the first and the last.
func makePictures(t *testing.T, p *prometheus) {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(stack.Chromium(t)), chromedp.Headless, chromedp.NoFirstRun}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox refuses root
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	defer cancel()
	browser, cancel := chromedp.NewContext(allocator)
	defer cancel()
	require.NoError(t, chromedp.Do(browser), "the browser does not start")
	for name, panels := range dashboards(t) {
		t.Run(name, func(t *testing.T) {
			page, graphs := url.Values{}, 0
			row := ""
			for _, panel := range panels {
				if panel.row == row || panel.row == "Status" || panel.row == "Resources" {
					continue
				}
				row = panel.row
				for key, value := range map[string]string{"expr": panel.Targets[0].Expr, "tab": "0", "range_input": "2m"} {
					page.Set(fmt.Sprintf("g%d.%s", graphs, key), value)
				}
				graphs++
			}
			tab, cancel := chromedp.NewContext(browser)
			defer cancel()
			tab, stop := context.WithTimeout(tab, 2*await.Patience)
			defer stop()
			shown := fmt.Sprintf(`new Promise((resolve) => {
				const look = () => [...document.querySelectorAll('.eval_stats')].filter((e) => e.innerText.includes('Load time')).length >= %d
					? (document.querySelector('nav').remove(), setTimeout(() => resolve(true), 1000)) : setTimeout(look, 100);
				look();
			})`, graphs)
			require.NoError(t, chromedp.Do(tab, chromedp.EmulateViewport(900, 800, chromedp.EmulateScale(0.6)), chromedp.Navigate(p.url+"/graph?"+page.Encode())))
			_, err := chromedp.Run(tab, chromedp.Evaluate[bool](shown, chromedp.EvalAwaitPromise))
			require.NoError(t, err, "the graphs do not appear")
			picture, err := chromedp.Run(tab, chromedp.FullScreenshot(100))
			require.NoError(t, err)
			assert.Less(t, len(picture), largestPicture)
			require.NoError(t, os.WriteFile(filepath.Join(picturesFolder, "prometheus-"+name+".png"), picture, 0o644))
		})
	}
}
