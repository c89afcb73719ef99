package console

import (
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func ask(t *testing.T, h http.Handler, method, address, etag string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, address, nil)
	if etag != "" {
		r.Header.Set("If-None-Match", etag)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// each calls f for every file, with its address.
func each(t *testing.T, f func(address, name, text string)) {
	t.Helper()
	n := 0
	require.NoError(t, fs.WalkDir(embedded, folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := embedded.ReadFile(name)
		address := prefix + strings.TrimPrefix(name, folder+"/")
		if address == prefix+index {
			address = "/"
		}
		f(address, name, string(text))
		n++
		return err
	}))
	require.Greater(t, n, 15)
}

func TestHeaders(t *testing.T) {
	h := Handler()
	each(t, func(address, _, text string) {
		for _, method := range []string{http.MethodGet, http.MethodHead} {
			got := ask(t, h, method, address, "")
			assert.Equal(t, http.StatusOK, got.Code, address)
			policies := strings.Split(got.Header().Get("Content-Security-Policy"), "; ")
			for _, want := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'",
				"form-action 'none'", "require-trusted-types-for 'script'"} {
				assert.Contains(t, policies, want, address)
			}
			assert.NotContains(t, got.Header().Get("Content-Security-Policy"), "unsafe", address)
			assert.Equal(t, "nosniff", got.Header().Get("X-Content-Type-Options"), address)
			assert.Equal(t, "same-origin", got.Header().Get("Referrer-Policy"), address)
			assert.Equal(t, "DENY", got.Header().Get("X-Frame-Options"), address)
			assert.Equal(t, "no-cache", got.Header().Get("Cache-Control"), address)
			want := map[string]string{"": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
			assert.Equal(t, want[path.Ext(address)], got.Header().Get("Content-Type"), address)
			if method == http.MethodGet {
				assert.Equal(t, text, got.Body.String(), address)
			} else {
				assert.Empty(t, got.Body.String(), address)
			}

			etag := got.Header().Get("ETag")
			assert.Regexp(t, `^"[\w-]{16}"$`, etag, address)
			again := ask(t, h, method, address, etag)
			assert.Equal(t, http.StatusNotModified, again.Code, address)
			assert.Equal(t, etag, again.Header().Get("ETag"), address)
			assert.Equal(t, http.StatusOK, ask(t, h, method, address, `"another"`).Code, address)
		}
	})
}

func TestOtherAddresses(t *testing.T) {
	h := Handler()
	for _, address := range []string{"/nothing", "/console", "/console/", "/console/index.html", "/console/pages", "/console/pages/", "/console/nothing.js", "/console/../console.go",
		"/console/..%2fconsole.go", "/console//app.js", "/index.html", "/app.js", "/v1/buses", "/console/App.js"} {
		assert.Equal(t, http.StatusNotFound, ask(t, h, http.MethodGet, address, "").Code, address)
	}
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodDelete, http.MethodOptions} {
		got := ask(t, h, method, "/", "")
		assert.Equal(t, http.StatusMethodNotAllowed, got.Code, method)
		assert.Equal(t, "GET, HEAD", got.Header().Get("Allow"), method)
	}
}

// TestRoutes: the console leaves the addresses of others alone.
func TestRoutes(t *testing.T) {
	r := chi.NewRouter()
	r.Get("/v1/buses", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	Routes(r)
	assert.Equal(t, http.StatusOK, ask(t, r, http.MethodGet, "/", "").Code)
	assert.Equal(t, http.StatusOK, ask(t, r, http.MethodHead, "/", "").Code)
	assert.Equal(t, http.StatusOK, ask(t, r, http.MethodGet, "/console/pages/buses.js", "").Code)
	assert.Equal(t, http.StatusTeapot, ask(t, r, http.MethodGet, "/v1/buses", "").Code)
	assert.Equal(t, http.StatusNotFound, ask(t, r, http.MethodGet, "/v1/nothing", "").Code)
	assert.Equal(t, http.StatusNotFound, ask(t, r, http.MethodGet, "/console/nothing.js", "").Code)
}

// TestReferencedFilesExist: every file that another one names is served, and every one but the page
// is named by another.
func TestReferencedFilesExist(t *testing.T) {
	h := Handler()
	reference := regexp.MustCompile(`(?:src|href)="([^"#][^"]*)"|(?m:^import [^']*from '([^']+)';$)|(?m:^import '([^']+)';$)|import\('([^']+)'\)|url\(([^)]+)\)`)
	named := map[string]bool{"/": true}
	each(t, func(address, name, text string) {
		for _, found := range reference.FindAllStringSubmatch(text, -1) {
			to := strings.Join(found[1:], "")
			target := path.Join(path.Dir(address), to)
			named[target] = true
			assert.Equal(t, http.StatusOK, ask(t, h, http.MethodGet, target, "").Code, "%s names %s", name, to)
		}
	})
	each(t, func(address, name, _ string) { assert.True(t, named[address], "no file names %s", name) })
}

// TestNothingInlineOrExternal: what the policy would refuse is not there to begin with, nor is what
// makes markup of texts.
func TestNothingInlineOrExternal(t *testing.T) {
	element := regexp.MustCompile(`(?is)<script\b([^>]*)>(.*?)</script>`)
	anywhere := map[string]*regexp.Regexp{
		"an external address": regexp.MustCompile(`(?i)(?:https?:|wss?:)?//[a-z0-9-]+\.[a-z]`),
		"markup of a text": regexp.MustCompile(
			`innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|srcdoc|\beval\(|new Function|javascript:`),
		"kept beyond the tab": regexp.MustCompile(`localStorage|document\.cookie|indexedDB`),
	}
	// Names that mean no address: a namespace of XML, and what an example of a subscriber has.
	known := strings.NewReplacer("http://www.w3.org/2000/svg", "", "https://example.com/events", "", "persistent://public/default", "")
	each(t, func(_, name, text string) {
		for what, pattern := range anywhere {
			assert.Empty(t, pattern.FindString(known.Replace(text)), "%s: %s", name, what)
		}
		switch path.Ext(name) {
		case ".html", ".svg":
			for _, script := range element.FindAllStringSubmatch(text, -1) {
				assert.Contains(t, script[1], "src=", "%s: a script in the page", name)
				assert.Empty(t, strings.TrimSpace(script[2]), "%s: a script in the page", name)
			}
			assert.NotRegexp(t, `(?i)<style|\sstyle\s*=|\son[a-z]+\s*=`, text, "%s: a style or a handler in the page", name)
		case ".css":
			assert.NotContains(t, text, "@import", name)
		}
	})
}
