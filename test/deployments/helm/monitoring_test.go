package helm

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// The alerts are the files of deployments/prometheus as they stand, those of the services that are
// installed and of Pulsar.
func TestMonitoring(t *testing.T) {
	t.Parallel()
	objects := render(t, "serviceMonitor: {enabled: true}\nprometheusRule: {enabled: true, labels: {release: x}}\nsonic: {enabled: true}")
	require.Len(t, kind(objects, "ServiceMonitor"), 1)
	monitor := kind(objects, "ServiceMonitor")[0]
	found := 0
	for _, service := range kind(objects, "Service") {
		labels := service.labels("metadata", "labels")
		for key, value := range monitor.labels("spec", "selector", "matchLabels") {
			assert.Equal(t, value, labels[key])
		}
		for _, port := range service.list("spec", "ports") {
			if port.at("name") == monitor.list("spec", "endpoints")[0].at("port") {
				found++
			}
		}
	}
	assert.Equal(t, 1, found, "each process is read once")

	var want []object
	for _, name := range []string{"sonic", "pulsar"} {
		text, err := os.ReadFile(root + "/deployments/prometheus/" + name + ".rules.yaml")
		require.NoError(t, err)
		var spec object
		require.NoError(t, yaml.Unmarshal(text, &spec))
		want = append(want, spec)
	}
	var have []object
	for _, rule := range kind(objects, "PrometheusRule") {
		assert.Equal(t, "x", rule.text("metadata", "labels", "release"))
		have = append(have, rule.at("spec").(map[string]any))
	}
	assert.ElementsMatch(t, want, have)
	for _, o := range render(t, "sonic: {enabled: true}") {
		assert.NotContains(t, []string{"ServiceMonitor", "PrometheusRule"}, o.text("kind"), "off by default")
	}
}

// The alerts tell processes apart by job and zone: each deployment is a job, and each zone a label.
func TestJobsAndZones(t *testing.T) {
	t.Parallel()
	values, err := os.ReadFile(examples + "/several-zones.yaml")
	require.NoError(t, err)
	objects := render(t, string(values)+"\nserviceMonitor: {enabled: true}\nnightingale: {enabled: true, zone: c}\npigeonhole: {enabled: true, config: {zone: \"${ZONE}\"}}")
	monitor := kind(objects, "ServiceMonitor")[0]
	require.Equal(t, []any{"zone"}, monitor.at("spec", "targetLabels"))
	zones := map[string]string{}
	for _, service := range kind(objects, "Service") {
		labels := service.labels("metadata", "labels")
		if service.list("spec", "ports")[0].at("port") != nil && service.list("spec", "ports")[0].at("name") == "admin" {
			zones[labels[monitor.text("spec", "jobLabel")]] = labels["zone"]
		}
	}
	assert.Equal(t, map[string]string{
		"sonic-a": "a", "sonic-b": "b", "nightingale": "c", "pigeonhole": "",
		"eventbridge-ingest": "", "eventbridge-engine": "", "eventbridge-processor": "",
	}, zones)
}
