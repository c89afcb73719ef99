package deployments

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"

	"github.com/aviaryhq/aviary/test/stack"
)

const (
	rulesFolder     = root + "/deployments/prometheus"
	dashboardFolder = root + "/deployments/grafana"
)

// boards are the names of the files of rules, and of dashboards.
var boards = append([]string{"pulsar"}, services...)

// alert is what the tests read of a rule.
type alert struct {
	Alert       string            `yaml:"alert"`
	Labels      map[string]string `yaml:"labels"`
	Annotations map[string]string `yaml:"annotations"`
}

// alerts returns the rules of one file.
func alerts(t *testing.T, board string) (all []alert) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(rulesFolder, board+".rules.yaml"))
	require.NoError(t, err)
	var file struct {
		Groups []struct {
			Rules []alert `yaml:"rules"`
		} `yaml:"groups"`
	}
	require.NoError(t, yaml.Unmarshal(text, &file))
	for _, group := range file.Groups {
		all = append(all, group.Rules...)
	}
	require.NotEmpty(t, all)
	return all
}

// promtool says that the rules are correct, and that each alert fires on series that it should fire
// on, and on no others: deployments/prometheus/tests.
func TestRules(t *testing.T) {
	t.Parallel()
	_, promtool := stack.Prometheus(t)
	for _, board := range boards {
		said, err := run(t, nil, promtool, "check", "rules", filepath.Join(rulesFolder, board+".rules.yaml"))
		require.NoError(t, err, said)
		tests := filepath.Join(rulesFolder, "tests", board+".yaml")
		said, err = run(t, nil, promtool, "test", "rules", tests)
		require.NoError(t, err, said)
		text, err := os.ReadFile(tests)
		require.NoError(t, err)
		for _, a := range alerts(t, board) {
			assert.Contains(t, string(text), `{alertname="`+a.Alert+`"}`, "%s has no test in which it fires", a.Alert)
		}
	}
}

// Each alert has a section of the runbook, and each section an alert.
func TestRunbook(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(root + "/docs/runbook.md")
	require.NoError(t, err)
	var sections, names []string
	for _, found := range regexp.MustCompile(`(?m)^## (\w+)$`).FindAllStringSubmatch(string(text), -1) {
		sections = append(sections, found[1])
	}
	for _, board := range boards {
		for _, a := range alerts(t, board) {
			names = append(names, a.Alert)
			assert.True(t, strings.HasPrefix(strings.ToLower(a.Alert), board), "the dashboard finds the alerts by the beginning of their names: %s", a.Alert)
			assert.Contains(t, []string{"critical", "warning"}, a.Labels["severity"], a.Alert)
			assert.NotEmpty(t, a.Annotations["summary"], a.Alert)
			assert.NotEmpty(t, a.Annotations["description"], a.Alert)
			assert.Equal(t, "docs/runbook.md#"+strings.ToLower(a.Alert), a.Annotations["runbook_url"])
		}
	}
	assert.ElementsMatch(t, names, sections)
}

// The dashboards are what their source generates.
func TestDashboardsAreThoseOfTheirSource(t *testing.T) {
	t.Parallel()
	generated := t.TempDir()
	said, err := run(t, nil, "go", "-C", dashboardFolder+"/source", "run", ".", "-to", generated)
	require.NoError(t, err, said)
	for _, board := range boards {
		want, err := os.ReadFile(filepath.Join(generated, board+".json"))
		require.NoError(t, err)
		have, err := os.ReadFile(filepath.Join(dashboardFolder, board+".json"))
		require.NoError(t, err)
		assert.Equal(t, string(want), string(have), "run make dashboards")
	}
	files, err := filepath.Glob(dashboardFolder + "/*.json")
	require.NoError(t, err)
	assert.Len(t, files, len(boards))
}
