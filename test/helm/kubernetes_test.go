package helm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// validator is kubectl-validate, which has Kubernetes' own schemas. `make helm-check` installs it.
func validator(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath(os.Getenv("AVIARY_KUBECTL_VALIDATE"))
	require.NoError(t, err, "run it by make helm-check")
	return path
}

// operatorVersion is the version of the Prometheus operator whose schemas ServiceMonitor and
// PrometheusRule are checked against.
const operatorVersion = "v0.85.0"

// operatorSchemas returns a folder with these two schemas, as the operator's module has them.
func operatorSchemas(t *testing.T) string {
	t.Helper()
	module := "github.com/prometheus-operator/prometheus-operator@" + operatorVersion
	out, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", module).Output()
	require.NoError(t, err, "%s", out)
	var downloaded struct{ Dir string }
	require.NoError(t, yaml.Unmarshal(out, &downloaded))
	dir := t.TempDir()
	for _, name := range []string{"monitoring.coreos.com_servicemonitors.yaml", "monitoring.coreos.com_prometheusrules.yaml"} {
		text, err := os.ReadFile(filepath.Join(downloaded.Dir, "example/prometheus-operator-crd", name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	return dir
}

// validate has kubectl-validate check objects.
func validate(t *testing.T, objects []object) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, o.text("kind")+"-"+o.text("metadata", "name")+".yaml"), text, 0o600))
	}
	out, err := exec.CommandContext(t.Context(), validator(t), "--version", "1.30", "--local-crds", operatorSchemas(t), dir).CombinedOutput()
	return string(out), err
}

func TestKubernetesAcceptsTheObjects(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		said, err := validate(t, objects)
		assert.NoError(t, err, said)
	})
	said, err := validate(t, renderShop(t))
	assert.NoError(t, err, said)

	// It does look.
	for _, change := range []func(workload object){
		func(w object) { w["spec"].(map[string]any)["replica"] = 2 },
		func(w object) { w["spec"].(map[string]any)["replicas"] = "two" },
		func(w object) { delete(w["spec"].(map[string]any), "selector") },
	} {
		workload := workloads(t, render(t, "sonic: {enabled: true}"))[0]
		change(workload)
		said, err := validate(t, []object{workload})
		assert.Error(t, err, said)
	}
	monitor := kind(render(t, "serviceMonitor: {enabled: true}"), "ServiceMonitor")
	require.Len(t, monitor, 1)
	monitor[0]["spec"].(map[string]any)["endpoint"] = "admin"
	said, err = validate(t, monitor)
	assert.Error(t, err, said)
}
