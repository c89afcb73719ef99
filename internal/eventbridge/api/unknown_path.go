package api

import (
	"cmp"
	"net/http"
	"strings"

	"github.com/go-chi/chi/v5"

	"github.com/aviaryhq/aviary/internal/httpserver"
	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
	"github.com/aviaryhq/aviary/internal/truncate"
)

// unknownPath answers requests for unknown paths and methods with the existing ones: a wrong path
// is the first mistake of a sender.
func unknownPath(r chi.Router) {
	const here = "events go by POST to /v1/buses/{bus}/events; GET /v1/openapi.json describes the API, and the console is at /"
	r.NotFound(func(w http.ResponseWriter, req *http.Request) {
		httpserver.AnswerAtOnce(w, req)
		refusal.WriteProblem(w, refusal.UnknownPath(req.URL.Path, here), nil)
	})
	r.MethodNotAllowed(func(w http.ResponseWriter, req *http.Request) {
		httpserver.AnswerAtOnce(w, req)
		last := req.URL.Path[strings.LastIndex(req.URL.Path, "/")+1:]
		if _, action, asked := strings.Cut(last, ":"); asked && req.Method == http.MethodPost {
			text := "there is no action :" + truncate.Text(action, 64) + " here; GET /v1/openapi.json lists all actions"
			refusal.WriteProblem(w, &refusal.Error{Status: http.StatusNotFound, Reason: "unknown_path", Text: text}, nil)
			return
		}
		path := cmp.Or(req.URL.RawPath, req.URL.Path) // chi looks for the path as it was sent
		var taken []string
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete} {
			if r.Match(chi.NewRouteContext(), method, path) {
				taken = append(taken, method)
			}
		}
		w.Header().Set("Allow", strings.Join(taken, ", "))
		refusal.WriteProblem(w, refusal.WrongMethod(req, taken...), nil)
	})
}
