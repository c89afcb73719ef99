package console

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// startBrowser returns a context of a browser that ends with the test.
func startBrowser(t *testing.T) context.Context {
	t.Helper()
	options := []chromedp.ExecAllocatorOption{chromedp.ExecPath(stack.Chromium(t)), chromedp.Headless, chromedp.NoFirstRun, chromedp.Flag("lang", "en")}
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox) // Chromium's sandbox refuses root
	}
	allocator, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	browser, cancel := chromedp.NewContext(allocator)
	t.Cleanup(cancel)
	require.NoError(t, chromedp.Do(browser), "the browser does not start")
	return browser
}

// look is how a page is looked at.
type look struct {
	scheme string // light or dark
	width  int64
}

func (l look) String() string { return fmt.Sprintf("%s-%d", l.scheme, l.width) }

// tab is one tab of the browser. It notes what the page writes to the console: a test fails by what
// it does not expect.
type tab struct {
	t   *testing.T
	ctx context.Context
	url string

	mu       sync.Mutex
	noted    []string
	expected []string
}

func newTab(browser context.Context, t *testing.T, url string, l look) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(browser)
	ctx, stop := context.WithTimeout(ctx, 10*await.Patience) // for all that a test does
	b := &tab{t: t, ctx: ctx, url: url}
	require.NoError(t, chromedp.Do(ctx,
		chromedp.EmulateViewport(l.width, 800),
		chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
			_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: l.scheme}},
			})
			if err != nil {
				return err
			}
			// Each tab behaves as the one that is looked at.
			_, err = chromedp.Call(ctx, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true})
			return err
		})))
	messages := chromedp.Console(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for m, err := range messages {
			if err != nil {
				return
			}
			b.mu.Lock()
			b.noted = append(b.noted, fmt.Sprintf("%s %s %s %s", m.Type, m.Source, m.Text, m.URL))
			b.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		b.quiet()
		stop()
		cancel()
		<-done
	})
	return b
}

// expect names what the page may write to the console, such as an answer that is an error.
func (b *tab) expect(texts ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.expected = append(b.expected, texts...)
}

// quiet fails the test when the page wrote anything to the console that is not expected.
func (b *tab) quiet() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, line := range b.noted {
		known := false
		for _, text := range b.expected {
			known = known || strings.Contains(line, text)
		}
		if !known {
			b.t.Errorf("the page wrote to the console: %s", line)
		}
	}
	b.noted = nil
}

// eval evaluates an expression in the page.
func eval[T any](b *tab, expression string) T {
	b.t.Helper()
	// As JSON: what is undefined is null.
	text, err := chromedp.Run(b.ctx, chromedp.Evaluate[string](`(async () => JSON.stringify(await (`+expression+`) ?? null))()`, chromedp.EvalAwaitPromise))
	require.NoError(b.t, err, expression)
	var v T
	require.NoError(b.t, json.Unmarshal([]byte(text), &v), "%s: %s", expression, text)
	return v
}

// wait waits until an expression holds in the page.
func (b *tab) wait(expression string) {
	b.t.Helper()
	held := eval[bool](b, fmt.Sprintf(`new Promise((resolve) => {
		const end = performance.now() + %d;
		const look = () => {
			if (%s) resolve(true);
			else if (performance.now() > end) resolve(false);
			else setTimeout(look, 15);
		};
		look();
	})`, await.Patience.Milliseconds(), expression))
	if !held {
		b.t.Fatalf("it never holds: %s\nthe page: %s", expression, eval[string](b, `document.body.innerText`))
	}
}

// see waits until the page has a text.
func (b *tab) see(text string) {
	b.t.Helper()
	b.wait(`document.body.innerText.includes(` + quote(text) + `)`)
}

// open shows a page, and waits until its heading is there.
func (b *tab) open(address, heading string) {
	b.t.Helper()
	b.visit(address)
	b.shown(address, heading)
}

// visit goes to a page.
func (b *tab) visit(address string) {
	b.t.Helper()
	if eval[bool](b, `location.protocol.startsWith('http')`) {
		eval[any](b, `void (location.hash = `+quote(address)+`)`)
	} else {
		require.NoError(b.t, chromedp.Do(b.ctx, chromedp.Navigate(b.url+"/"+address)))
	}
}

// shown waits until a page is shown.
func (b *tab) shown(address, heading string) {
	b.t.Helper()
	b.wait(`location.hash === ` + quote(address) + ` && !document.getElementById('main').hasAttribute('aria-busy') && document.querySelector('h1')?.textContent === ` + quote(heading))
}

// element is an expression for the element of a kind with a text, or a label: button, a, input ...
func element(kind, name string) string {
	return `[...document.querySelectorAll(` + quote(kind) + `)].find((e) => e.checkVisibility() && [e.textContent.trim(), e.labels?.[0]?.textContent, e.getAttribute('aria-label')].includes(` + quote(name) + `))`
}

// click clicks a button or link as a user does: where it is, once it stays there.
func (b *tab) click(kind, name string) {
	b.t.Helper()
	b.wait(element(kind, name))
	at := eval[[]float64](b, `new Promise((resolve) => {
		const find = () => `+element(kind, name)+`;
		const place = (e) => { const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; };
		let last, calm = 0;
		const look = () => {
			const e = find();
			if (!e) return requestAnimationFrame(look);
			e.scrollIntoView({ block: 'center', behavior: 'instant' });
			const now = place(e);
			calm = String(now) === String(last) && e.contains(document.elementFromPoint(...now)) ? calm + 1 : 0;
			last = now;
			calm < 3 ? requestAnimationFrame(look) : resolve(now);
		};
		look();
	})`)
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.MouseClickXY(at[0], at[1])))
}

// write replaces what a field holds, as typing does.
func (b *tab) write(label, text string) {
	b.t.Helper()
	e := element("input, textarea", label)
	b.wait(e)
	eval[any](b, `(() => { const e = `+e+`; e.focus(); e.value = `+quote(text)+`; e.dispatchEvent(new Event('input', { bubbles: true })); })()`)
}

// choose chooses an option by its text.
func (b *tab) choose(label, option string) {
	b.t.Helper()
	eval[any](b, `(() => { const e = `+element("select", label)+`; e.value = [...e.options].find((o) => o.textContent === `+quote(option)+`).value; e.dispatchEvent(new Event('change', { bubbles: true })); })()`)
}

func (b *tab) press(key string) {
	b.t.Helper()
	require.NoError(b.t, chromedp.Do(b.ctx, chromedp.KeyEvent(key)))
}

// picture stores a picture of the whole page among the test's artifacts, if they are wanted (go
// test -artifacts).
func (b *tab) picture(name string) {
	b.t.Helper()
	if wanted := flag.Lookup("test.artifacts"); wanted == nil || wanted.Value.String() != "true" {
		return
	}
	data, err := chromedp.Run(b.ctx, chromedp.FullScreenshot(100))
	require.NoError(b.t, err)
	require.NoError(b.t, os.WriteFile(filepath.Join(b.t.ArtifactDir(), name+".png"), data, 0o600))
}

// keepsWidth fails the test when the page is wider than the window.
func (b *tab) keepsWidth() {
	b.t.Helper()
	wide := eval[[]string](b, `document.documentElement.scrollWidth <= innerWidth ? [] :
		[...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).map((e) => e.outerHTML.slice(0, 120))`)
	for _, e := range wide {
		b.t.Errorf("wider than the window: %s", e)
	}
}

// keysReach fails the test when the Tab key does not reach each control in its turn, or one does
// not show that it has the focus.
func (b *tab) keysReach() {
	b.t.Helper()
	n := eval[int](b, `(() => {
		document.activeElement.blur();
		const all = [...document.querySelectorAll('a[href], button, input, select, textarea, summary, [tabindex="0"]')].filter((e) => e.checkVisibility({ visibilityProperty: true }));
		all.forEach((e, i) => { e.dataset.stop = i; });
		document.body.tabIndex = -1; // Tab begins at the top
		document.body.focus();
		document.body.removeAttribute('tabindex');
		return all.length;
	})()`)
	require.Positive(b.t, n)
	reached := map[string]bool{}
	last := -1
	for range 8 * n { // fields for dates have several stops
		b.press("\t")
		now := eval[[]string](b, `(() => { const e = document.activeElement; const s = getComputedStyle(e); return [e.dataset.stop ?? '', s.outlineStyle, e.outerHTML.slice(0, 120)]; })()`)
		if now[0] == "" {
			break // past the last
		}
		if !reached[now[0]] {
			if now[1] == "none" {
				b.t.Errorf("it does not show the focus: %s", now[2])
			}
			stop := 0
			_, err := fmt.Sscan(now[0], &stop)
			require.NoError(b.t, err)
			if stop < last {
				b.t.Errorf("not in the order of the page: %s", now[2])
			}
			last = stop
		}
		reached[now[0]] = true
		if len(reached) == n {
			return
		}
	}
	missed := eval[[]string](b, `[...document.querySelectorAll('[data-stop]')].filter((e) => !`+quote(reached)+`[e.dataset.stop]).map((e) => e.outerHTML.slice(0, 120))`)
	for _, e := range missed {
		b.t.Errorf("Tab does not reach it: %s", e)
	}
}
