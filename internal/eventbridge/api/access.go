package api

import (
	"net/http"

	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/bearer"
)

// The roles of tokens.
const (
	RoleAdmin  = "admin"  // may do everything
	RoleViewer = "viewer" // may read, and test patterns
)

// Access says who may use the API. The zero value: everyone who addresses it by a Host that is
// surely its own.
type Access struct {
	// Tokens are bearer tokens, each bound to a role instead of a tenant. Nil: no token is needed.
	Tokens *bearer.Tokens
	// Hosts are allowed if no token is needed, in addition to those that [httpserver.Hosts] always
	// allows.
	Hosts httpserver.Hosts
}

// authorized passes on the requests that are allowed by the role of their token.
func (a *API) authorized(next http.Handler) http.Handler {
	return a.answer(func(w http.ResponseWriter, r *http.Request) error {
		if a.Access.Tokens != nil {
			switch role, known := a.Access.Tokens.Tenant(bearer.Token(r)); {
			case !known:
				w.Header().Set("WWW-Authenticate", `Bearer realm="eventbridge"`)
				httpserver.AnswerAtOnce(w, r)
				return refused(http.StatusUnauthorized, "the request has no token that this API knows: Authorization: Bearer <token>")
			case role != RoleAdmin && !reads(r):
				return refused(http.StatusForbidden, "the token may only read")
			}
		}
		next.ServeHTTP(w, r)
		return nil
	})
}

// reads reports whether a request changes nothing.
func reads(r *http.Request) bool {
	return r.Method == http.MethodGet || r.Method == http.MethodHead || r.URL.Path == "/v1/patterns:test"
}

// sameSite refuses changes that a browser sends for another site's page: without tokens only the
// network protects the API, and the browser is inside it.
func (a *API) sameSite(next http.Handler) http.Handler {
	protection := http.NewCrossOriginProtection()
	return a.answer(func(w http.ResponseWriter, r *http.Request) error {
		if protection.Check(r) != nil {
			return refused(http.StatusForbidden, "the request comes from another site's page")
		}
		next.ServeHTTP(w, r)
		return nil
	})
}
