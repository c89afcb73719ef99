package api

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/httpserver/refusal"
)

// A wrong path or method is answered with the right one, as a problem document like every other
// answer.
func TestWrongPathsAreToldTheRightOne(t *testing.T) {
	router := chi.NewRouter()
	a, err := New(Options{Log: zap.NewNop()})
	require.NoError(t, err)
	a.Routes(router)
	router.Post("/v1/buses/{bus}/events", func(http.ResponseWriter, *http.Request) {})
	for request, want := range map[[2]string]struct {
		status        int
		says, methods string
	}{
		{"POST", "/events"}:                                {404, "there is nothing at /events: events go by POST to /v1/buses/{bus}/events", ""},
		{"POST", "/v1/buses/orders/event"}:                 {404, "events go by POST to /v1/buses/{bus}/events", ""},
		{"GET", "/metrics"}:                                {404, "/metrics is at the address of admin.listen, not here", ""},
		{"GET", "/-/ready"}:                                {404, "admin.listen", ""},
		{"GET", "/v1/buses/orders/events"}:                 {405, "/v1/buses/orders/events takes POST, not GET", "POST"},
		{"POST", "/v1/buses/orders/subscribers/mail:stop"}: {404, "there is no action :stop here", ""},
		{"POST", "/v1/buses/orders:redrive"}:               {404, "there is no action :redrive here", ""},
		{"POST", "/v1/buses/orders"}:                       {405, "/v1/buses/orders takes GET, PUT, DELETE, not POST", "GET, PUT, DELETE"},
		{"POST", "/v1/buses/a%2Fb"}:                        {405, "/v1/buses/a/b takes GET, PUT, DELETE, not POST", "GET, PUT, DELETE"},
	} {
		w := httptest.NewRecorder()
		router.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), request[0], request[1], nil))
		assert.Equal(t, want.status, w.Code, request)
		assert.Equal(t, refusal.ProblemMediaType, w.Header().Get("Content-Type"))
		assert.Contains(t, w.Body.String(), want.says)
		assert.Equal(t, want.methods, strings.Join(w.Header().Values("Allow"), "; "), "in one line")
		assert.Empty(t, w.Header().Get("Connection"))
		w = httptest.NewRecorder()
		router.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), request[0], request[1], strings.NewReader("{}")))
		assert.Equal(t, "close", w.Header().Get("Connection"), "the answer does not wait for the body")
	}
}
