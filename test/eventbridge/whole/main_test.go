// Package whole tests Eventbridge as processes of its roles that are killed under load, and counts
// at the subscribers.
package whole

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/test/systems"
)

func TestMain(m *testing.M) {
	systems.Main(m, func() int {
		return app.Main(app.Program[eventbridge.Config]{
			Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Build: eventbridge.Build,
		})
	})
}

// AVIARY_EVENTBRIDGE_SECONDS asks for the long forms: for how long faults happen in
// TestRandomFaults. The others last a fifth of it, an outage 60 s, and a subscriber is unavailable
// for 5 minutes. AVIARY_EVENTBRIDGE_SEED is the seed of what is sent and of faults; the scheduler
// decides, too.
const (
	seconds = "AVIARY_EVENTBRIDGE_SECONDS"
	seedOf  = "AVIARY_EVENTBRIDGE_SEED"
)

// number is what a variable says, or other.
func number(t testing.TB, variable string, other uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return other
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, variable)
	return n
}

// seed is that of the run. It is printed.
func seed(t testing.TB) uint64 {
	t.Helper()
	s := number(t, seedOf, rand.Uint64())
	t.Logf("%s=%d %s=%d", seedOf, s, seconds, number(t, seconds, 0))
	return s
}

// lasting is short, or, of the long form, what long says of its seconds.
func lasting(t testing.TB, short time.Duration, long func(all time.Duration) time.Duration) time.Duration {
	t.Helper()
	if n := number(t, seconds, 0); n > 0 {
		return long(time.Duration(n) * time.Second)
	}
	return short
}

// fifth is how long tests without a time of their own last in the long form.
func fifth(all time.Duration) time.Duration { return max(all/5, 20*time.Second) }

// An asker sends requests to a server. It is safe for concurrent use.
type asker struct{ client http.Client }

func newAsker() *asker {
	return &asker{http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
}

// ask returns the answer. The status is 0 when there is none.
func (a *asker) ask(method, url, kind string, body []byte) (status int, answer []byte) {
	req, err := http.NewRequest(method, url, bytes.NewReader(body))
	if err != nil {
		return 0, []byte(err.Error())
	}
	req.Header.Set("Content-Type", kind)
	resp, err := a.client.Do(req)
	if err != nil {
		return 0, []byte(err.Error())
	}
	defer resp.Body.Close()
	if answer, err = io.ReadAll(resp.Body); err != nil {
		return 0, []byte(err.Error())
	}
	return resp.StatusCode, answer
}

func encode(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	return text
}
