//go:build apiserver

package helm

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/yaml"
)

// apply is how Helm 4 and kubectl send an object: the fields that the sender owns, and no unknown
// ones.
const apply = "?fieldManager=helm&fieldValidation=Strict&force=true"

// remove is how they delete an object: what it owns goes with it.
const remove = "?propagationPolicy=Background"

// A real API server takes every object of each example: installed, read back, upgraded and removed.
// `make helm-apply` runs it.
func TestAPIServerTakesTheObjects(t *testing.T) {
	server := startAPIServer(t)
	// The strictest of Kubernetes' own standards for pods.
	server.must(t, http.MethodPost, "/api/v1/namespaces", object{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{
		"name": space, "labels": map[string]any{"pod-security.kubernetes.io/enforce": "restricted"},
	}})
	for _, file := range schemaFiles(t) {
		server.must(t, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", file)
	}
	for _, kind := range []string{"servicemonitors", "prometheusrules"} {
		require.Eventually(t, func() bool {
			status, _, err := server.do(t.Context(), http.MethodGet, "/apis/monitoring.coreos.com/v1/"+kind, nil)
			return err == nil && status == http.StatusOK
		}, startTimeout, 100*time.Millisecond)
	}

	files, err := filepath.Glob(examples + "/*.yaml")
	require.NoError(t, err)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			values := parse(t, string(text))
			first, err := rendered(chart, values)
			require.NoError(t, err)
			for _, o := range first {
				server.must(t, http.MethodPatch, pathOf(o)+apply, o)
			}
			server.mustHave(t, first)
			for _, workload := range append(workloads(t, first), kind(first, "Job")...) {
				server.must(t, http.MethodPost, "/api/v1/namespaces/"+space+"/pods?fieldValidation=Strict&dryRun=All", podOf(workload))
			}

			// An upgrade: another image and other sizes.
			values["image"] = map[string]any{"tag": "2.0.0"}
			values["common"] = map[string]any{"replicas": 3, "priorityClassName": "system-cluster-critical"}
			second, err := rendered(chart, values)
			require.NoError(t, err)
			require.NotEqual(t, first, second)
			for _, o := range hooks(first) { // before-hook-creation
				server.must(t, http.MethodDelete, pathOf(o)+remove, nil)
			}
			for _, o := range second {
				server.must(t, http.MethodPatch, pathOf(o)+apply, o)
			}
			server.mustHave(t, second)

			for _, o := range second {
				server.must(t, http.MethodDelete, pathOf(o)+remove, nil)
				status, _, err := server.do(t.Context(), http.MethodGet, pathOf(o), nil)
				require.NoError(t, err)
				assert.Equal(t, http.StatusNotFound, status, o)
			}
			t.Logf("%d objects", len(second))
		})
	}

	// It does look: a pod that may be root, and a key that there is not.
	workload := workloads(t, render(t, "sonic: {enabled: true}"))[0]
	pod := podOf(workload)
	object(pod["spec"].(map[string]any)).list("containers")[0]["securityContext"] = map[string]any{"runAsUser": 0}
	status, answer, err := server.do(t.Context(), http.MethodPost, "/api/v1/namespaces/"+space+"/pods?dryRun=All", pod)
	require.NoError(t, err)
	assert.Equal(t, http.StatusForbidden, status, answer)
	workload["spec"].(map[string]any)["replica"] = 2
	status, answer, err = server.do(t.Context(), http.MethodPatch, pathOf(workload)+apply, workload)
	require.NoError(t, err)
	assert.NotEqual(t, 2, status/100, answer)
}

// schemaFiles are the operator's schemas.
func schemaFiles(t *testing.T) []object {
	t.Helper()
	files, err := filepath.Glob(operatorSchemas(t) + "/*.yaml")
	require.NoError(t, err)
	require.Len(t, files, 2)
	var all []object
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var schema object
		require.NoError(t, yaml.Unmarshal(text, &schema))
		all = append(all, schema)
	}
	return all
}

// podOf is a pod as the workload's controller would make it.
func podOf(workload object) object {
	template := maps.Clone(workload.at("spec", "template").(map[string]any))
	template["apiVersion"], template["kind"] = "v1", "Pod"
	template["metadata"] = map[string]any{"name": workload.text("metadata", "name") + "-0", "labels": object(template).at("metadata", "labels")}
	return template
}

// mustHave reads objects back: the server has each of their fields. It adds others.
func (s *apiServer) mustHave(t *testing.T, objects []object) {
	t.Helper()
	for _, o := range objects {
		have := s.must(t, http.MethodGet, pathOf(o), nil)
		assertHas(t, have, o, o.String())
	}
}

func assertHas(t *testing.T, have, want object, path string) {
	t.Helper()
	for key, value := range want {
		hasValue(t, have[key], value, path+"."+key)
	}
}

func hasValue(t *testing.T, have, want any, path string) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		m, _ := have.(map[string]any)
		assertHas(t, m, want, path)
	case []any:
		items, _ := have.([]any)
		if assert.Len(t, items, len(want), path) {
			for i := range want {
				hasValue(t, items[i], want[i], path)
			}
		}
	case nil: // a key without a value
	default:
		assert.Equal(t, want, have, path)
	}
}
