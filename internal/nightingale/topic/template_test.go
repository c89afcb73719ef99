package topic

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/nightingale/batch"
)

func TestTemplates(t *testing.T) {
	labels := []batch.Label{
		{Name: "__name__", Value: "up"}, {Name: "empty", Value: ""}, {Name: "job", Value: "a/b c{é}"},
		{Name: "long", Value: strings.Repeat("x", 100)}, {Name: "part", Value: "x-partition-12"},
		{Name: "sys", Value: "__change_events"}, {Name: "up", Value: ".."},
	}
	for text, want := range map[string]string{
		"persistent://public/default/metrics":              "persistent://public/default/metrics",
		"persistent://public/{tenant}/metrics-{label.job}": "persistent://public/acme/metrics-a_b_c____",
		"persistent://{tenant}/{label.zone}/{name}":        "persistent://acme/none/up",
		"non-persistent://a/b/{label.sys}":                 "non-persistent://a/b/x_change_events",
		"persistent://a/b/{label.part}":                    "persistent://a/b/x-partition-12_",
		"persistent://a/{label.up}/{label.up}":             "persistent://a/__/x_",
		"persistent://a/b/c-{label.up}":                    "persistent://a/b/c-..",
	} {
		parsed, err := Parse(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, string(parsed.Render(nil, "acme", labels)), text)
	}
	parsed, err := Parse("persistent://a/b/{label.long}")
	require.NoError(t, err)
	one := string(parsed.Render(nil, "", labels))
	labels[3].Value += "y"
	other := string(parsed.Render(nil, "", labels))
	assert.NotEqual(t, one, other, "long values stay apart")
	assert.Len(t, one, len("persistent://a/b/")+maxPart)
}
