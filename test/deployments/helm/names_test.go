package helm

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What Kubernetes takes as a label's value, and as the name of a volume.
const (
	validLabel = `^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	validName  = `^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`
)

func TestNames(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		seen := map[string]bool{}
		for _, o := range objects {
			assert.False(t, seen[o.String()], "two objects %s", o)
			seen[o.String()] = true
		}
	})
	// A Secret may have dots in its name.
	pod := object(workloads(t, render(t, "sonic: {enabled: true, secretFiles: [redis.example, pulsar]}"))[0].at("spec", "template", "spec").(map[string]any))
	require.Len(t, pod.list("volumes"), 3)
	for i, volume := range pod.list("volumes") {
		assert.Regexp(t, validName, volume.text("name"))
		assert.Equal(t, volume.at("name"), pod.list("containers")[0].list("volumeMounts")[i].at("name"))
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	digest := "1.0.0@sha256:" + strings.Repeat("a", 64)
	other := copyOfChart(t, "version: 0.1.0\n", "version: 0.1.0+build.5\n")
	values := parse(t, "image: {tag: \""+digest+"\"}\nsonic: {enabled: true}")
	objects, err := rendered(other, values)
	require.NoError(t, err)
	for _, o := range objects {
		for key, value := range o.labels("metadata", "labels") {
			assert.Regexp(t, validLabel, value, key)
		}
	}
	assert.True(t, strings.HasSuffix(workloads(t, objects)[0].list("spec", "template", "spec", "containers")[0].text("image"), ":"+digest))
}

// A new version of the chart alone replaces no pod.
func TestPodsStayWithANewChart(t *testing.T) {
	t.Parallel()
	values := parse(t, "image: {tag: 1.0.0}\nsonic: {enabled: true}\npigeonhole: {enabled: true}")
	before, err := rendered(chart, maps.Clone(values))
	require.NoError(t, err)
	after, err := rendered(copyOfChart(t, "version: 0.1.0\n", "version: 0.2.0\n"), values)
	require.NoError(t, err)
	require.NotEqual(t, before[0].labels("metadata", "labels"), after[0].labels("metadata", "labels"))
	for i, workload := range workloads(t, before) {
		assert.Equal(t, workload.at("spec"), workloads(t, after)[i].at("spec"))
	}
}

// copyOfChart copies the chart with a change of Chart.yaml.
func copyOfChart(t *testing.T, was, is string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "aviary")
	require.NoError(t, os.CopyFS(filepath.Join(dir, "templates"), os.DirFS(chart+"/templates")))
	for _, file := range []string{"Chart.yaml", "values.yaml", "values.schema.json"} {
		text, err := os.ReadFile(filepath.Join(chart, file))
		require.NoError(t, err)
		if file == "Chart.yaml" {
			require.Contains(t, string(text), was)
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, file), []byte(strings.ReplaceAll(string(text), was, is)), 0o600))
	}
	return dir
}
