package door

import (
	"net/http"
	"strings"
)

// Elsewhere is the Refusal of a path that the server does not have. here says what it has; for a path of the admin server the answer says where
// that is.
func Elsewhere(path, here string) *Refusal {
	text := "there is nothing at " + Cut(path, 64) + ": " + here
	if path == "/metrics" || strings.HasPrefix(path, "/-/") || strings.HasPrefix(path, "/debug/") {
		text = Cut(path, 64) + " is at the address of admin.listen, not here"
	}
	return &Refusal{Status: http.StatusNotFound, Reason: "unknown_path", Text: text}
}

// Method is the Refusal of a method that a path does not take.
func Method(r *http.Request, taken ...string) *Refusal {
	text := Cut(r.URL.Path, 64) + " takes " + strings.Join(taken, ", ") + ", not " + Cut(r.Method, 16)
	return &Refusal{Status: http.StatusMethodNotAllowed, Reason: "method", Text: text}
}
