// Package eventbridge tests Eventbridge as processes. It kills them under load and counts events at
// the subscribers. It may import Eventbridge's packages, pkg/messaging, test/stack and test/systems.
package eventbridge

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/parallel"
	"github.com/aviaryhq/aviary/test/systems"
)

func TestMain(m *testing.M) {
	parallel.Tests(3)
	systems.Main(m, func() int {
		return app.Main(app.Program[eventbridge.Config]{
			Name: "eventbridge", Defaults: eventbridge.DefaultConfig, Flags: eventbridge.Flags, Build: eventbridge.Build,
		})
	})
}

// fifth is how long tests without a time of their own last in the long form.
func fifth(all time.Duration) time.Duration { return max(all/5, 20*time.Second) }

// An asker sends requests to a server. It is safe for concurrent use.
type asker struct{ client http.Client }

func newAsker() *asker {
	return &asker{http.Client{Timeout: await.Patience, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}}
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
