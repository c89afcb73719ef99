package helm

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hooks are the objects that Helm creates before an installation or an upgrade, and deletes after it.
func hooks(objects []object) []object {
	return slices.DeleteFunc(slices.Clone(objects), func(o object) bool { return o.at("metadata", "annotations", "helm.sh/hook") == nil })
}

// The set-up is over before there are pods, and no part of their start.
func TestSetup(t *testing.T) {
	t.Parallel()
	objects := render(t, "sonic: {enabled: true, setup: {enabled: true}, secretFiles: [pulsar], priorityClassName: high, config: {ack: local}}")
	before := hooks(objects)
	require.Len(t, before, 2)
	config, job := before[0], before[1]
	require.Equal(t, "Job", job.text("kind"))
	for _, o := range before {
		assert.Equal(t, "pre-install,pre-upgrade", o.at("metadata", "annotations", "helm.sh/hook"))
	}
	assert.Equal(t, "-1", config.at("metadata", "annotations", "helm.sh/hook-weight"), "first")
	assert.Equal(t, "0", job.at("metadata", "annotations", "helm.sh/hook-weight"))

	workload := workloads(t, objects)[0]
	ofJob, ofWorkload := job.list("spec", "template", "spec", "containers")[0], workload.list("spec", "template", "spec", "containers")[0]
	assert.Equal(t, append(slices.Clone(ofWorkload.at("args").([]any)), "-setup"), ofJob.at("args"))
	for _, same := range []string{"image", "env", "resources"} {
		assert.Equal(t, ofWorkload.at(same), ofJob.at(same))
	}
	_, text := configuration(t, objects, workload)
	assert.Equal(t, text, config.text("data", "sonic.yaml"))
	pod := object(job.at("spec", "template", "spec").(map[string]any))
	assert.Equal(t, config.at("metadata", "name"), pod.list("volumes")[0].at("configMap", "name"))
	assert.Equal(t, "high", pod.at("priorityClassName"))
	for i, mount := range ofJob.list("volumeMounts") {
		assert.Equal(t, pod.list("volumes")[i].at("name"), mount.at("name"))
		assert.Equal(t, ofWorkload.list("volumeMounts")[i].at("mountPath"), mount.at("mountPath"))
	}

	selector := workload.labels("spec", "selector", "matchLabels")
	labels := job.labels("spec", "template", "metadata", "labels")
	assert.NotEqual(t, selector["app.kubernetes.io/component"], labels["app.kubernetes.io/component"], "its pods are not those of the service")
	assert.Nil(t, workload.at("spec", "template", "spec", "initContainers"))
	assert.Empty(t, hooks(render(t, "sonic: {enabled: true}")))
}

func TestSetupForASidecar(t *testing.T) {
	t.Parallel()
	assert.Len(t, hooks(render(t, "sonic: {enabled: true, sidecar: true, setup: {enabled: true}}")), 2)
}
