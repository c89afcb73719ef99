package helm

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Each service accepts the configuration that its pod has, with the variables of its container.
// `make build` makes the services.
func TestServicesAcceptTheirConfigurations(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		for _, workload := range workloads(t, objects) {
			service, text := configuration(t, objects, workload)
			// Secrets are files of the pod, which are not here.
			secrets := t.TempDir()
			for _, name := range secretFiles(text) {
				file := filepath.Join(secrets, name)
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
				require.NoError(t, os.WriteFile(file, []byte("secret"), 0o600))
			}
			text = strings.ReplaceAll(text, mounted, secrets+"/")
			said := check(t, workload.list("spec", "template", "spec", "containers")[0], service, text)
			assert.Contains(t, said, "the configuration is valid")
			assert.NotContains(t, said, "warning")
		}
	})
	// A fault is found.
	assert.Contains(t, check(t, object{}, "sonic", "redis: {uri: x}"), "uri")
}

const mounted = "/etc/aviary-secrets/"

// secretFiles are the files of Secrets that a configuration names.
func secretFiles(text string) []string {
	var names []string
	for _, field := range strings.Fields(text) {
		if name, found := strings.CutPrefix(field, mounted); found {
			names = append(names, name)
		}
	}
	return names
}

// check has a service check a configuration, with the variables of its container.
func check(t *testing.T, container object, service, text string) string {
	t.Helper()
	binary, err := filepath.Abs(root + "/bin/" + service)
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), service+".yaml")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	cmd := exec.CommandContext(t.Context(), binary, "-config.check", "-config.file", file)
	cmd.Env = os.Environ()
	for _, variable := range container.list("env") {
		value := variable.text("value")
		if value == "" { // it comes from elsewhere
			value = "value-0"
		}
		cmd.Env = append(cmd.Env, variable.text("name")+"="+value)
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		var status *exec.ExitError
		require.ErrorAs(t, err, &status)
	}
	return string(out)
}
