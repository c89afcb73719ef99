//go:build kubectl

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

// validate has kubectl-validate check objects.
func validate(t *testing.T, objects []object) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for _, o := range objects {
		text, err := yaml.Marshal(o)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, o.text("kind")+"-"+o.text("metadata", "name")+".yaml"), text, 0o600))
	}
	out, err := exec.CommandContext(t.Context(), os.Getenv("AVIARY_KUBECTL_VALIDATE"), "--version", "1.30", "--local-crds", operatorSchemas(t), dir).CombinedOutput()
	return string(out), err
}

// kubectl-validate, which has Kubernetes' own schemas, accepts each object. `make helm-check`
// installs it and runs this.
func TestKubernetesAcceptsTheObjects(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
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
