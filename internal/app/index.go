package app

import (
	"fmt"
	"html"
	"net/http"
	"slices"
	"strings"
)

// adminPage is a page of the admin server, as its index lists it.
type adminPage struct{ path, what string }

// adminPages returns the pages that every service has.
func adminPages() []adminPage {
	return []adminPage{
		{"/metrics", "metrics for Prometheus: the service's, the library's and the Pulsar client's"},
		{"/-/healthy", "200 while the process runs"},
		{"/-/ready", "200 when the service is ready, otherwise 503; the result of each check"},
		{"/-/config", "the configuration in effect, without secrets"},
		{"/debug/pprof/", "profiles, for go tool pprof"},
	}
}

// index lists the pages: as text, and with links for a browser. It also answers unknown paths, with
// 404.
func (r *Runtime) index(w http.ResponseWriter, req *http.Request) {
	r.mu.Lock()
	pages := append(adminPages(), r.pages...)
	r.mu.Unlock()
	slices.SortFunc(pages, func(a, b adminPage) int { return strings.Compare(a.path, b.path) })
	title := r.Name + ", admin server"
	status := http.StatusOK
	if req.URL.Path != "/" {
		title, status = "Unknown path. "+title, http.StatusNotFound
	}
	var b strings.Builder
	if kind := "text/html"; strings.Contains(req.Header.Get("Accept"), kind) {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		title = html.EscapeString(title)
		fmt.Fprintf(&b, "<!doctype html><meta name=viewport content=width=device-width><title>%s</title><h1>%s</h1><ul>\n", title, title)
		for _, p := range pages {
			fmt.Fprintf(&b, "<li><a href=%q>%s</a> %s\n", p.path, p.path, html.EscapeString(p.what))
		}
		b.WriteString("</ul>\n")
	} else {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		fmt.Fprintf(&b, "%s\n\n", title)
		for _, p := range pages {
			fmt.Fprintf(&b, "%-14s %s\n", p.path, p.what)
		}
	}
	w.WriteHeader(status)
	_, _ = w.Write([]byte(b.String())) // it fails when the client has closed the connection
}
