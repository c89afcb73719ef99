package helm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// Kubernetes' own types have each field of the objects, and of their kinds. It finds no field that is
// missing: kubectl-validate does. The objects of the Prometheus operator are left to that, too.
func TestKubernetesKnowsEachField(t *testing.T) {
	t.Parallel()
	decoder := serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()
	decode := func(t *testing.T, o object) error {
		t.Helper()
		text, err := yaml.Marshal(o)
		require.NoError(t, err)
		_, _, err = decoder.Decode(text, nil, nil)
		return err
	}
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		for _, o := range objects {
			if !strings.HasPrefix(o.text("apiVersion"), "monitoring.coreos.com/") {
				assert.NoError(t, decode(t, o), o)
			}
		}
	})
	for _, o := range renderShop(t) {
		assert.NoError(t, decode(t, o), o)
	}
	for key, value := range map[string]any{"replica": 2, "replicas": "two"} {
		workload := workloads(t, render(t, "sonic: {enabled: true}"))[0]
		workload["spec"].(map[string]any)[key] = value
		assert.ErrorContains(t, decode(t, workload), key)
	}
}

// validator is kubectl-validate, which has Kubernetes' own schemas. `make helm-check` installs it.
func validator(t *testing.T) string {
	t.Helper()
	path := os.Getenv("AVIARY_KUBECTL_VALIDATE")
	if path == "" {
		t.Skip("run by make helm-check: it builds kubectl-validate")
	}
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
