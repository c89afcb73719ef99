package refusal

import (
	"net/http"
	"strings"

	"github.com/aviaryhq/aviary/internal/truncate"
)

// UnknownPath is the refusal of a path that the server does not have. here says which paths it has.
// For a path of the admin server the text names admin.listen.
func UnknownPath(path, here string) *Error {
	text := "there is nothing at " + truncate.Text(path, 64) + ": " + here
	if path == "/metrics" || strings.HasPrefix(path, "/-/") || strings.HasPrefix(path, "/debug/") {
		text = truncate.Text(path, 64) + " is at the address of admin.listen, not here"
	}
	return &Error{Status: http.StatusNotFound, Reason: "unknown_path", Text: text}
}

// WrongMethod is the refusal of a method that a path does not take.
func WrongMethod(r *http.Request, taken ...string) *Error {
	text := truncate.Text(r.URL.Path, 64) + " takes " + strings.Join(taken, ", ") + ", not " + truncate.Text(r.Method, 16)
	return &Error{Status: http.StatusMethodNotAllowed, Reason: "method", Text: text}
}
