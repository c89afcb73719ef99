package httpserver

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// Hosts are the names that a request's Host may have at a server without authentication, without
// ports. The owner of a domain can make its name resolve to any address: a browser inside the
// network then treats a page of that domain and this server as the same site (DNS rebinding). So IP
// addresses, names without a dot, and names below localhost, local, internal, svc and test are
// always allowed, because they cannot be registered. Other names are allowed only if they are
// listed. "*" allows all.
type Hosts []string

// Middleware refuses requests for a Host that an attacker may own, with status 421, unless the
// server authenticates its clients.
func (h Hosts) Middleware(authenticates func() bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !authenticates() && !h.Contain(r.Host) {
				refusal.WriteProblem(w, &refusal.Error{Status: http.StatusMisdirectedRequest, Reason: "unknown_host", Text: unknownHost, CloseConnection: true}, nil)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

const unknownHost = "without tokens this server accepts only IP addresses and known names in the header Host: add this name to http.hosts"

// Contain reports whether the Host of a request is allowed.
func (h Hosts) Contain(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	name := strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || slices.Contains(h, "*") {
		return true
	}
	i := strings.LastIndexByte(name, '.')
	if i < 0 {
		return true // a name without a dot, or none: a request of HTTP/1.0 may have no Host, and no browser sends it
	}
	if slices.Contains([]string{"localhost", "local", "internal", "svc", "test"}, name[i+1:]) {
		return true
	}
	return slices.ContainsFunc(h, func(known string) bool { return strings.EqualFold(strings.TrimSuffix(known, "."), name) })
}
