package helm

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// Values that the chart does not know are refused before anything is installed. The configurations
// are free: the services check them.
func TestValuesThatAreRefused(t *testing.T) {
	t.Parallel()
	for values, reason := range map[string]string{
		"nightingal: {enabled: true}":                                 "'nightingal' not allowed",
		"sonic: {enable: true}":                                       "'enable' not allowed",
		"sonic: {enabled: 'yes'}":                                     "want boolean",
		"sonic: {replicas: two}":                                      "want integer",
		"sonic: {autoscaling: {enabled: true}}":                       "'/sonic/autoscaling'",
		"pigeonhole: {autoscaling: {enabled: true}}":                  "'/pigeonhole/autoscaling'",
		"eventbridge: {sidecar: true}":                                "'/eventbridge/sidecar'",
		"sonic: {deployments: {a: {enabled: true}}}":                  "'/sonic/deployments/a/enabled'",
		"sonic: {deployments: {A_b: {}}}":                             "does not match pattern",
		"sonic: {secretEnv: {SONIC_REDIS_PASSWORD: secret}}":          "want object",
		"sonic: {secretEnv: {redis-password: {name: a, key: b}}}":     "does not match pattern",
		"sonic: {secretEnv: {A: {name: a}}}":                          "missing property 'key'",
		"sonic: {secretFiles: [Not_A_Name]}":                          "does not match pattern",
		"sonic: {config: text}":                                       "want object",
		"common: {config: {}}":                                        "'/common/config'",
		"common: {resources: {limits: {memory: 2Gi}}}":                "'/common/resources'",
		"sonic: {deployments: {a: {autoscaling: {enabled: true}}}}":   "'/sonic/deployments/a/autoscaling'",
		"sonic: {deployments: {a: {}, a-admin: {}}}":                  "a-admin",
		"sonic: {deployments: {a: {}, a-setup: {}}}":                  "a-setup",
		"sonic: {zone: 'a b'}":                                        "does not match pattern",
		"common: {networkPolicy: {egressPorts: [70000]}}":             "maximum",
		"common: {podDisruptionBudget: {maxUnavailable: 0}}":          "minimum",
		"image: {pullPolicy: Sometimes}":                              "value must be one of",
		"serviceMonitor: {interval: often}":                           "does not match pattern",
		"nightingale: {autoscaling: {enabled: true, minReplicas: 0}}": "minimum",
	} {
		_, err := rendered(chart, parse(t, values))
		assert.ErrorContains(t, err, reason, values)
	}
	_, err := rendered(chart, parse(t, "sonic: {config: {whatever: [1, {a: b}]}}"))
	assert.NoError(t, err)
}

// A key that is left empty is one that is not there.
func TestValuesThatAreLeftEmpty(t *testing.T) {
	t.Parallel()
	for _, values := range []string{"sonic: {enabled: true, config: }", "sonic: {enabled: true, deployments: }"} {
		_, err := rendered(chart, parse(t, values))
		assert.NoError(t, err, values)
	}
}

// A section comes before common, and a deployment before its section, with false and 0 too.
func TestValuesThatAreNarrower(t *testing.T) {
	t.Parallel()
	objects := render(t, "common: {replicas: 5}\npigeonhole: {enabled: true}\nsonic: {enabled: true, replicas: 4, deployments: {a: {replicas: 0, podDisruptionBudget: {enabled: false}}, b: {}}}")
	replicas := map[string]float64{}
	for _, workload := range workloads(t, objects) {
		replicas[workload.text("metadata", "name")] = workload.number("spec", "replicas")
	}
	assert.Equal(t, map[string]float64{"aviary-pigeonhole": 5, "aviary-sonic-a": 0, "aviary-sonic-b": 4}, replicas)
	assert.Len(t, kind(objects, "PodDisruptionBudget"), 2)
}
