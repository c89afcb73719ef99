package ingest

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/secret"
	"github.com/aviaryhq/aviary/test/stack"
)

// guide is where users read how to send events.
const guide = "../../../docs/eventbridge-parts/preprocessor.md"

// TestExamplesOfTheGuide runs its commands.
func TestExamplesOfTheGuide(t *testing.T) {
	for _, tool := range []string{"bash", "curl", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			stack.Unavailable(t, tool, err)
		}
	}
	page, err := os.ReadFile(guide)
	require.NoError(t, err)
	open := newDouble(t, nil)
	signing := newDouble(t, func(c *Config) {
		c.Tenants = []TenantConfig{{Name: "partner", Buses: []string{"orders"}, SigningSecrets: []secret.String{"whsec_YXZpYXJ5LWV4YW1wbGUtc2VjcmV0LTI0"}}}
	})
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	require.Len(t, blocks, 5)
	for _, block := range blocks {
		d := open
		if strings.Contains(block[1], "webhook-signature") {
			d = signing
		}
		script := strings.ReplaceAll(block[1], "http://localhost:9601", d.url)
		out, err := exec.CommandContext(t.Context(), "bash", "-eu", "-c", strings.ReplaceAll(script, "curl -i", "curl -sS -i --fail-with-body")).CombinedOutput()
		require.NoError(t, err, "%s\n%s", script, out)
		assert.Contains(t, string(out), "HTTP/1.1 202 Accepted", script)
		for _, line := range strings.Split(script, "\n") { // what the guide says that is answered
			if want, shown := strings.CutPrefix(line, "# "); shown && !strings.HasPrefix(want, "HTTP/") {
				assert.Contains(t, string(out), want)
			}
		}
	}
	assert.Len(t, open.stored(orders), 4)
	assert.Len(t, open.stored(model.Topics{Namespace: namespace}.Events("plain")), 1)
	assert.Len(t, signing.stored(orders), 1)
}
