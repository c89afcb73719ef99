package refusal

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestProblemsAreDocuments(t *testing.T) {
	w := httptest.NewRecorder()
	WriteProblem(w, &Error{Status: 503, Reason: "busy", Text: "wait \xff" + strings.Repeat("x", 3000), RetryAfter: 1500 * time.Millisecond, CloseConnection: true}, []int{1})
	assert.Equal(t, http.StatusServiceUnavailable, w.Code)
	assert.Equal(t, "2", w.Header().Get("Retry-After"))
	assert.Equal(t, "close", w.Header().Get("Connection"))
	assert.Equal(t, ProblemMediaType, w.Header().Get("Content-Type"))
	body := w.Body.String()
	assert.True(t, strings.HasPrefix(body, `{"title":"Service Unavailable","status":503,"detail":"wait `), body)
	assert.True(t, strings.HasSuffix(body, `...","reason":"busy","results":[1]}`), body)
	assert.Less(t, len(body), MaxAnswer+200)

	w = httptest.NewRecorder()
	WriteProblem(w, &Error{Status: 400, Text: "no"}, make(chan int))
	require.Equal(t, http.StatusInternalServerError, w.Code)
}
