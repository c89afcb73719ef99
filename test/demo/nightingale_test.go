package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/demo/display"
)

// TestSamplesThatWereSentAgainCountOnce: Prometheus counts each attempt, and an answer 503 is no
// failure of the smoke. A sample that is missing is one, and so is one that came twice.
func TestSamplesThatWereSentAgainCountOnce(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, line := range []string{"samples_total 7", "samples_retried_total 4", "samples_failed_total 0", "samples_pending 0", "exemplars_total 2", "exemplars_retried_total 1"} {
			name, value, _ := strings.Cut(line, " ")
			_, _ = fmt.Fprintf(w, "# TYPE prometheus_remote_storage_%[1]s gauge\nprometheus_remote_storage_%[1]s %[2]s\n", name, value)
		}
	}))
	defer server.Close()
	p := &prometheus{address: strings.TrimPrefix(server.URL, "http://")}
	sent, err := p.sent(t.Context())
	require.NoError(t, err)
	assert.EqualValues(t, 3, sent.samples)
	assert.EqualValues(t, 1, sent.exemplars)
	assert.EqualValues(t, 5, sent.retried)

	screen := display.New(io.Discard)
	n := &nightingale{env: &environment{screen: screen, first: newFirstData(screen)}, seen: received{last: map[string]int64{}, exemplar: map[string]exemplar{}}}
	receive := func(timestamp int, value string) {
		n.receive(&messaging.Delivery{Key: "series", Payload: fmt.Appendf(nil, `{"name":"up","type":"gauge","timestamp":%d,%s}`, timestamp, value)})
	}
	receive(1, `"value":1`)
	receive(2, `"value":1`)
	receive(2, `"exemplar":{}`)
	assert.False(t, allOK(n.compare(sent)), "one is missing")
	receive(3, `"value":1`)
	assert.True(t, allOK(n.compare(sent)), "%v", n.compare(sent))
	receive(3, `"value":1`)
	assert.False(t, allOK(n.compare(sent)), "one came twice")
}

// TestCommandsThatWereNotRunAreSentAgain, and no others.
func TestCommandsThatWereNotRunAreSentAgain(t *testing.T) {
	answers := []error{redisError("LOADING Redis cannot be reached: the command was not run"), nil}
	require.NoError(t, untilRun(t.Context(), func() error {
		err := answers[0]
		answers = answers[1:]
		return err
	}))
	assert.Empty(t, answers)
	unknown, times := redisError("ERR the connection to Redis was lost while this command ran"), 0
	require.ErrorIs(t, untilRun(t.Context(), func() error { times++; return unknown }), unknown)
	assert.Equal(t, 1, times)
}

type redisError string

func (e redisError) Error() string { return string(e) }
func (redisError) RedisError()     {}
