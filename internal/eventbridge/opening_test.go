package eventbridge_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/aviaryhq/aviary/internal/app"
	"github.com/aviaryhq/aviary/internal/eventbridge"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// While Pulsar is unavailable at the start, readiness says what is waited for, and why.
func TestReadinessSaysWhatTheStartWaitsFor(t *testing.T) {
	t.Parallel()
	cfg := eventbridge.DefaultConfig()
	cfg.Pulsar.URL, cfg.Admin.Listen, cfg.HTTP.Listen = "pulsar://127.0.0.1:1", "127.0.0.1:0", "127.0.0.1:0"
	core, logs := observer.New(zap.InfoLevel)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- app.RunProgram(ctx, app.Program[eventbridge.Config]{Name: "eventbridge", Build: eventbridge.Build}, cfg, zap.New(core))
	}()
	ask := func() (status int, body string) {
		lines := logs.FilterMessage("listening").FilterField(zap.String("server", "admin")).All()
		if len(lines) == 0 {
			return 0, ""
		}
		address, _ := lines[0].ContextMap()["address"].(string)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+"/-/ready", nil)
		if err != nil {
			return 0, ""
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, ""
		}
		defer func() { _ = resp.Body.Close() }()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, ""
		}
		return resp.StatusCode, string(text)
	}
	assert.Eventually(t, func() bool {
		status, body := ask()
		return status == http.StatusServiceUnavailable && strings.Contains(body, `"status":"starting"`) &&
			strings.Contains(body, "the registry is not read yet: ") && strings.Contains(body, "connection refused")
	}, await.Patience, 10*time.Millisecond)
	stop()
	require.NoError(t, <-ended)
}

// A process whose address is taken fails before it is an engine or a processor: others would hand
// it partitions.
func TestATakenAddressIsFoundBeforeTheRolesBegin(t *testing.T) {
	t.Parallel()
	server := stack.Pulsar(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	cfg := eventbridge.DefaultConfig()
	cfg.Pulsar.URL, cfg.Topics.Namespace = server.URL(), server.Namespace(t)
	cfg.Admin.Listen, cfg.HTTP.Listen = "127.0.0.1:0", taken.Addr().String()
	core, logs := observer.New(zap.DebugLevel)
	err = app.RunProgram(t.Context(), app.Program[eventbridge.Config]{Name: "eventbridge", Build: eventbridge.Build}, cfg, zap.New(core))
	require.ErrorContains(t, err, "http.listen: cannot listen on")
	for _, line := range logs.All() {
		assert.NotRegexp(t, "^(engine|processor|preprocessor)", line.LoggerName, line.Message)
		assert.NotContains(t, []string{"engine", "processor", "instances"}, line.ContextMap()["stage"])
	}
}
