package pigeonhole

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/pigeonhole/lane"
)

// parse returns the configuration of a text.
func parse(t *testing.T, text string) Config {
	t.Helper()
	file := filepath.Join(t.TempDir(), "pigeonhole.yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	loaded, err := loadFile(file)
	require.NoError(t, err)
	return loaded.Config
}

// routeTo is a route between servers that do not exist.
func routeTo(name, queue string) string {
	return fmt.Sprintf("- name: %s\n  source: {rabbitmq: {url: 'amqp://127.0.0.1:1/', queues: [{name: q}]}}\n  sink: {rabbitmq: {url: 'amqp://127.0.0.1:1/'}}\n  to: %s\n",
		name, queue)
}

// serve runs the routes of a text until the test ends.
func serve(t *testing.T, text string) *service {
	t.Helper()
	reg := prometheus.NewRegistry()
	s := &service{log: zap.NewNop(), registerer: reg, metrics: lane.NewMetrics(reg), routes: map[string]*route{}}
	t.Cleanup(func() { assert.NoError(t, s.stop(context.Background())) })
	require.NoError(t, s.change(t.Context(), parse(t, text)))
	return s
}

// TestRoutesEndOnlyWhereTheFileSaysSo: a file that was cut off has no routes, too.
func TestRoutesEndOnlyWhereTheFileSaysSo(t *testing.T) {
	s := serve(t, "routes:\n"+routeTo("a", "x")+routeTo("b", "y"))
	a, b := s.find("a"), s.find("b")
	for _, cut := range []string{"name: pigeonhole\n", "name: pigeonhole\nroutes:\n", "{}"} {
		require.EqualError(t, s.change(t.Context(), parse(t, cut)), "routes: must be given: to stop every route write routes: []")
		assert.Same(t, a, s.find("a"))
		assert.Same(t, b, s.find("b"))
	}
	require.NoError(t, s.change(t.Context(), parse(t, "routes:\n"+routeTo("b", "y"))))
	assert.Nil(t, s.find("a"))
	assert.Same(t, b, s.find("b"), "as it was")
	require.NoError(t, s.change(t.Context(), parse(t, "routes: []")))
	assert.Empty(t, s.all())
	require.NoError(t, s.change(t.Context(), parse(t, "{}")), "there is nothing to stop")
}
