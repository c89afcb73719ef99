package helm

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// settings are the keys of a file of Pulsar.
func settings(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(root + "/configs/pulsar/" + file)
	require.NoError(t, err)
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if key, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(key, "#") {
			all[key] = value
		}
	}
	require.NotEmpty(t, all, file)
	return all
}

// jvm returns the variables of a JVM, each written as NAME=${NAME:-"value"}.
func jvm(t *testing.T, file string) map[string]string {
	t.Helper()
	all := settings(t, file)
	for name, value := range all {
		parts := regexp.MustCompile(`^\$\{` + name + `:-"(.*)"\}$`).FindStringSubmatch(value)
		require.Len(t, parts, 2, "%s: %s=%s", file, name, value)
		all[name] = parts[1]
	}
	for name, value := range all {
		all[name] = os.Expand(value, func(other string) string { return all[other] })
	}
	return all
}

// The values for Pulsar's own chart say what configs/pulsar says. Bookies take PULSAR_MEM where
// BOOKIE_MEM is not set.
func TestValuesForPulsarAreItsSettings(t *testing.T) {
	t.Parallel()
	for _, cluster := range []string{"business", "ops"} {
		text, err := os.ReadFile(folder + "/pulsar-" + cluster + ".yaml")
		require.NoError(t, err)
		values := object(parse(t, string(text)))
		variables := jvm(t, cluster+"/jvm.env")
		for part, of := range map[string]struct{ file, prefix string }{"broker": {"broker.conf", "PULSAR"}, "bookkeeper": {"bookkeeper.conf", "BOOKIE"}} {
			want := settings(t, cluster+"/"+of.file)
			want["PULSAR_MEM"], want["PULSAR_GC"] = variables[of.prefix+"_MEM"], variables[of.prefix+"_GC"]
			if part == "bookkeeper" && values.at("components", "autorecovery") != false { // the chart's own
				delete(want, "autoRecoveryDaemonEnabled")
			}
			have := map[string]string{}
			config, _ := values.at(part, "configData").(map[string]any)
			for key, value := range config {
				require.IsType(t, "", value, "%s %s.configData.%s: Kubernetes takes texts only", cluster, part, key)
				have[strings.TrimPrefix(key, "PULSAR_PREFIX_")] = fmt.Sprint(value)
			}
			assert.Equal(t, want, have, "%s: %s.configData and %s", cluster, part, of.file)
		}
		for key, value := range values.labels("autorecovery", "configData") {
			assert.Equal(t, value, values.labels("bookkeeper", "configData")[key], "the auditor's own: %s", key)
		}
	}
}
