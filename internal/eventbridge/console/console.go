package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"
)

//go:embed files
var embedded embed.FS

const (
	folder = "files"
	index  = "index.html"
	// prefix is that of the addresses of all files but the index, so that none is an address of the
	// API.
	prefix = "/console/"
)

// policy lets the page load scripts, styles, pictures and data from its own server, and nothing
// else. The page itself contains no script and no style, and no text becomes markup: a browser that
// knows Trusted Types refuses every assignment to innerHTML.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; " +
	"frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// file is a file as it is served.
type file struct {
	content []byte
	kind    string // Content-Type
	etag    string
}

// Handler serves the console: the page at /, its files below /console/. It answers GET and HEAD;
// other addresses are 404. A browser asks each time whether a file has changed (ETag), so that a
// new version of the process is a new version of the console.
func Handler() http.Handler {
	files := load()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, below := strings.CutPrefix(r.URL.Path, prefix)
		if r.URL.Path == "/" {
			name, below = index, true
		} else if name == index {
			below = false // it has one address
		}
		f, known := files[name]
		switch {
		case !below || !known:
			http.NotFound(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "the console answers GET and HEAD", http.StatusMethodNotAllowed)
		default:
			f.serve(w, r)
		}
	})
}

// Routes adds the console's routes.
func Routes(r chi.Router) {
	h := Handler()
	r.Handle("/", h)
	r.Handle(prefix+"*", h)
}

func (f file) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", f.kind)
	h.Set("ETag", f.etag)
	h.Set("Cache-Control", "no-cache")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY") // for browsers that do not know frame-ancestors
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.content))
}

// load reads the embedded files. They are part of the binary: an error here would occur in every
// test, and is a panic.
func load() map[string]file {
	files := map[string]file{}
	// Package mime would use the machine's own table of types: these tables differ.
	kinds := map[string]string{
		".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
	}
	err := fs.WalkDir(embedded, folder, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := embedded.ReadFile(name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(content)
		files[strings.TrimPrefix(name, folder+"/")] = file{
			content: content, kind: kinds[path.Ext(name)], etag: `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`,
		}
		return nil
	})
	if err != nil {
		panic(err)
	}
	return files
}
