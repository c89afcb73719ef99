package api

import (
	"net/http"
	"net/url"

	"github.com/aviaryhq/aviary/internal/door"
)

// The roles of tokens.
const (
	RoleAdmin  = "admin"  // may do everything
	RoleViewer = "viewer" // may read, and test patterns
)

// Access says who may use the API. The zero value: everybody who reaches it by an address that is surely its own.
type Access struct {
	// Tokens are bearer tokens, bound to a role in place of a tenant. Nil: none is asked for.
	Tokens *door.Tokens
	// Hosts are names by which the server may be asked where no token is asked for, besides those that [door.Hosts] knows.
	Hosts door.Hosts
}

// knownHost refuses requests for names that may be anybody's, where no token is asked for: a page of the internet whose name is made to lead to this
// process (DNS rebinding) is of the same site as the API, to a browser that stands inside the network.
func (a *API) knownHost(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.Access.Tokens == nil && !a.Access.Hosts.Know(r.Host) {
			writeProblem(w, problem{Status: http.StatusMisdirectedRequest, Detail: door.UnknownHost})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorized lets those through who may do what they ask for.
func (a *API) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a.Access.Tokens == nil {
			next.ServeHTTP(w, r)
			return
		}
		role, known := a.Access.Tokens.Tenant(door.Bearer(r))
		if !known {
			w.Header().Set("WWW-Authenticate", `Bearer realm="eventbridge"`)
			writeProblem(w, problem{Status: http.StatusUnauthorized, Detail: "the request has no token that this API knows: Authorization: Bearer <token>"})
			return
		}
		if role != RoleAdmin && !reads(r) {
			writeProblem(w, problem{Status: http.StatusForbidden, Detail: "the token may only read"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

// reads reports whether a request changes nothing.
func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Path == "/v1/patterns:test"
}

// sameSite refuses changes that a browser sends for another site's page: without tokens the network is all that protects
// the API, and a browser is inside it.
func (*API) sameSite(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead && crossSite(r) {
			writeProblem(w, problem{Status: http.StatusForbidden, Detail: "the request comes from another site's page"})
			return
		}
		next.ServeHTTP(w, r)
	})
}

func crossSite(r *http.Request) bool {
	switch r.Header.Get("Sec-Fetch-Site") {
	case "same-origin", "none":
		return false
	case "":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	u, err := url.Parse(origin)
	return err != nil || u.Host != r.Host
}
