package helm

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The chart of an application takes Sonic as a sidecar: examples/shop.
func TestSidecar(t *testing.T) {
	t.Parallel()
	objects := renderShop(t)
	require.Len(t, objects, 2, "the application, and the ConfigMap of Sonic")
	shop := workloads(t, objects)[0]
	pod := object(shop.at("spec", "template", "spec").(map[string]any))
	require.Len(t, pod.list("initContainers"), 1)
	sonic := pod.list("initContainers")[0]
	assert.Equal(t, "Always", sonic.at("restartPolicy"), "it runs beside the application, and ends after it")
	assert.Equal(t, "/-/ready", sonic.at("startupProbe", "httpGet", "path"))
	assert.Nil(t, sonic.at("readinessProbe"), "the pod of an application stays ready: Sonic serves reads all the same")
	assert.InDelta(t, 30+45, pod.number("terminationGracePeriodSeconds"), 0)
	listen := ""
	for _, variable := range sonic.list("env") {
		if variable.at("name") == "SONIC_LISTEN" {
			listen = variable.text("value")
		}
	}
	assert.Equal(t, "127.0.0.1:6380", listen, "only its own pod may use it")

	config := kind(objects, "ConfigMap")[0]
	require.Len(t, pod.list("volumes"), 1)
	assert.Equal(t, config.at("metadata", "name"), pod.list("volumes")[0].at("configMap", "name"))
	assert.Equal(t, pod.list("volumes")[0].at("name"), sonic.list("volumeMounts")[0].at("name"))
	assert.Contains(t, check(t, sonic, "sonic", config.text("data", "sonic.yaml")), "the configuration is valid")
}
