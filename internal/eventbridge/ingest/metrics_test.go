package ingest

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The reasons that the document lists are counted from 0 on, so that an alert sees the first one;
// names and help texts are as Prometheus wants them (promtool check metrics).
func TestMetricsAreWellNamedAndThereFromTheStart(t *testing.T) {
	text, err := os.ReadFile("../../../docs/eventbridge-parts/preprocessor.md")
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, line := range strings.Split(string(text), "\n") {
		if cells := strings.Split(line, "|"); len(cells) > 3 && regexp.MustCompile(`^ [45]\d\d $`).MatchString(cells[1]) {
			for _, m := range regexp.MustCompile("`([a-z_0-9]+)`").FindAllStringSubmatch(cells[2], -1) {
				listed[m[1]] = true
			}
		}
	}
	delete(listed, "unknown_host") // it is refused before there is a request for the preprocessor
	require.Greater(t, len(listed), 30)

	reg := prometheus.NewRegistry()
	newMetrics(reg, Limits{})
	families, err := reg.Gather()
	require.NoError(t, err)
	for _, family := range families {
		if !strings.HasSuffix(family.GetName(), "_refused_total") {
			continue
		}
		counted := map[string]bool{}
		for _, m := range family.GetMetric() {
			counted[m.GetLabel()[0].GetValue()] = true
		}
		assert.Equal(t, listed, counted, family.GetName())
	}
	problems, err := testutil.GatherAndLint(reg)
	require.NoError(t, err)
	assert.Empty(t, problems)
}
