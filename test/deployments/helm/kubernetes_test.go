package helm

import (
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
