//go:build kubectl || apiserver

package helm

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

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
