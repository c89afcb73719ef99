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
		"sonic: {autoscaling: {enabled: true}}":                       "'autoscaling' not allowed",
		"pigeonhole: {autoscaling: {enabled: true}}":                  "'autoscaling' not allowed",
		"eventbridge: {sidecar: true}":                                "'sidecar' not allowed",
		"sonic: {deployments: {a: {enabled: true}}}":                  "'enabled' not allowed",
		"sonic: {deployments: {A_b: {}}}":                             "does not match pattern",
		"sonic: {secretEnv: {SONIC_REDIS_PASSWORD: secret}}":          "want object",
		"sonic: {secretEnv: {redis-password: {name: a, key: b}}}":     "does not match pattern",
		"sonic: {secretEnv: {A: {name: a}}}":                          "missing property 'key'",
		"sonic: {secretFiles: [Not_A_Name]}":                          "does not match pattern",
		"sonic: {config: text}":                                       "want object",
		"common: {config: {}}":                                        "'config' not allowed",
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
