package helm

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// containers are those of a workload, the init containers among them, that run one of our images.
func containers(workload object) []object {
	return append(workload.list("spec", "template", "spec", "initContainers"), workload.list("spec", "template", "spec", "containers")...)
}

// configuration is what a service reads: the file that its ConfigMap has.
func configuration(t *testing.T, objects []object, workload object) (service, text string) {
	t.Helper()
	service = workload.text("metadata", "labels", "app.kubernetes.io/name")
	for _, o := range kind(objects, "ConfigMap") {
		if o.at("metadata", "name") == workload.at("metadata", "name") {
			text = o.text("data", service+".yaml")
		}
	}
	require.NotEmpty(t, text, workload)
	return service, text
}

func TestNothingIsInstalledByDefault(t *testing.T) {
	t.Parallel()
	assert.Empty(t, render(t, ""))
}

func TestPods(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		for _, workload := range append(workloads(t, objects), kind(objects, "Job")...) {
			pod := object(workload.at("spec", "template", "spec").(map[string]any))
			assert.Equal(t, false, pod.at("automountServiceAccountToken"))
			assert.Equal(t, false, pod.at("enableServiceLinks"), "its variables may be taken for keys of a configuration")
			for _, c := range containers(workload) {
				security := object(c.at("securityContext").(map[string]any))
				assert.Equal(t, true, security.at("runAsNonRoot"))
				assert.InDelta(t, 65532, security.number("runAsUser"), 0, "the user of the image")
				assert.Equal(t, true, security.at("readOnlyRootFilesystem"))
				assert.Equal(t, false, security.at("allowPrivilegeEscalation"))
				assert.Equal(t, []any{"ALL"}, security.at("capabilities", "drop"))
				assert.Equal(t, "RuntimeDefault", security.at("seccompProfile", "type"))
				assert.NotNil(t, c.at("resources", "limits", "memory"), "services keep to it")
				assert.Nil(t, c.at("resources", "limits", "cpu"), "a limit of the processor makes pauses")
			}
			require.Len(t, pod.list("containers"), 1)
		}
	})
}

// Sonic serves reads while /-/ready is 503: docs/operations-sonic.md. Its pods stay in their Service.
func TestProbes(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		for _, workload := range workloads(t, objects) {
			c := workload.list("spec", "template", "spec", "containers")[0]
			assert.Equal(t, map[string]any{"path": "/-/healthy", "port": "admin"}, c.at("livenessProbe", "httpGet"))
			if c.at("name") == "sonic" {
				assert.Equal(t, "redis", c.at("readinessProbe", "tcpSocket", "port"))
				assert.Nil(t, c.at("readinessProbe", "httpGet"))
			} else {
				assert.Equal(t, map[string]any{"path": "/-/ready", "port": "admin"}, c.at("readinessProbe", "httpGet"))
			}
		}
	})
}

// The ports of the containers are those that the images listen on.
func TestPortsAreThoseOfTheImages(t *testing.T) {
	t.Parallel()
	dockerfile, err := os.ReadFile(root + "/deployments/docker/Dockerfile")
	require.NoError(t, err)
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		for _, workload := range workloads(t, objects) {
			service := workload.text("metadata", "labels", "app.kubernetes.io/name")
			_, stage, _ := strings.Cut(string(dockerfile), "FROM scratch AS "+service+"\n")
			exposed := regexp.MustCompile(`(?m)^EXPOSE (.*)$`).FindStringSubmatch(stage)
			require.Len(t, exposed, 2, service)
			var ports []string
			for _, port := range workload.list("spec", "template", "spec", "containers")[0].list("ports") {
				ports = append(ports, strconv.Itoa(int(port.number("containerPort"))))
			}
			assert.ElementsMatch(t, strings.Fields(exposed[1]), ports, service)
		}
	})
}

func TestPodsEndInTime(t *testing.T) {
	t.Parallel()
	for timeout, want := range map[string]float64{"": 45, "30s": 45, "1m30s": 105, "1.5m": 105, "1h": 3615, "2500ms": 18} {
		values := "nightingale: {enabled: true, config: {" + strings.TrimSuffix("shutdown_timeout: "+timeout, "shutdown_timeout: ") + "}}"
		workload := workloads(t, render(t, values))[0]
		grace := workload.number("spec", "template", "spec", "terminationGracePeriodSeconds")
		assert.InDelta(t, want, grace, 0, timeout)
		if timeout == "" {
			timeout = "30s" // the services' default
		}
		shutdown, err := time.ParseDuration(timeout)
		require.NoError(t, err)
		wait := workload.list("spec", "template", "spec", "containers")[0].number("lifecycle", "preStop", "sleep", "seconds")
		assert.Greater(t, grace, shutdown.Seconds()+wait, "beyond shutdown_timeout")
	}
	_, err := rendered(chart, parse(t, "nightingale: {enabled: true, config: {shutdown_timeout: soon}}"))
	assert.ErrorContains(t, err, "nightingale.config.shutdown_timeout: soon is no duration")
}

// Whatever selects pods selects those of one workload, and asks for ports that they have.
func TestSelectors(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		all, selected := workloads(t, objects), map[string]int{}
		for _, o := range slices.Concat(all, kind(objects, "Service", "PodDisruptionBudget", "NetworkPolicy")) {
			path := map[string][]string{"Service": {"spec", "selector"}, "NetworkPolicy": {"spec", "podSelector", "matchLabels"}}[o.text("kind")]
			if path == nil {
				path = []string{"spec", "selector", "matchLabels"}
			}
			selector := o.labels(path...)
			require.NotEmpty(t, selector, o)
			matches := slices.DeleteFunc(slices.Clone(all), func(w object) bool {
				labels := w.labels("spec", "template", "metadata", "labels")
				return slices.ContainsFunc(slices.Collect(maps.Keys(selector)), func(key string) bool { return labels[key] != selector[key] })
			})
			require.Len(t, matches, 1, o)
			selected[o.text("kind")+" of "+matches[0].text("metadata", "name")]++
			names := map[any]bool{}
			for _, port := range matches[0].list("spec", "template", "spec", "containers")[0].list("ports") {
				names[port.at("name")] = true
			}
			for _, port := range o.list("spec", "ports") {
				assert.True(t, names[port.at("targetPort")], "%s asks for the port %v", o, port.at("targetPort"))
			}
		}
		for _, workload := range all {
			name := workload.text("metadata", "name")
			assert.Equal(t, 1, selected["PodDisruptionBudget of "+name], name)
			assert.Equal(t, 1, selected["NetworkPolicy of "+name], name)
			if workload.text("kind") == "StatefulSet" {
				governing := slices.IndexFunc(kind(objects, "Service"), func(o object) bool { return o.at("metadata", "name") == workload.at("spec", "serviceName") })
				assert.GreaterOrEqual(t, governing, 0, "%s has no Service of its own", name)
			}
		}
		for _, scaler := range kind(objects, "HorizontalPodAutoscaler") {
			target := slices.IndexFunc(all, func(w object) bool {
				return w.at("kind") == scaler.at("spec", "scaleTargetRef", "kind") && w.at("metadata", "name") == scaler.at("spec", "scaleTargetRef", "name")
			})
			require.GreaterOrEqual(t, target, 0, scaler)
			assert.Nil(t, all[target].at("spec", "replicas"), "the autoscaler sets it")
		}
	})
}

// A pod may connect to each address of its configuration, and only those that are named may connect
// to its admin port.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		for _, workload := range workloads(t, objects) {
			_, text := configuration(t, objects, workload)
			var policy object
			for _, o := range kind(objects, "NetworkPolicy") {
				if o.at("metadata", "name") == workload.at("metadata", "name") {
					policy = o
				}
			}
			allowed := map[float64]bool{}
			for _, port := range policy.list("spec", "egress")[0].list("ports") {
				allowed[port.number("port")] = true
			}
			addresses := regexp.MustCompile(`(?:example\.com|local|redis-.|broker):(\d+)`).FindAllStringSubmatch(text, -1)
			require.NotEmpty(t, addresses)
			for _, address := range addresses {
				port, err := strconv.Atoi(address[1])
				require.NoError(t, err)
				assert.True(t, allowed[float64(port)], "%s may not connect to %s", workload, address[0])
			}
			assert.True(t, allowed[53])
			assert.False(t, allowed[22])
			for _, rule := range policy.list("spec", "ingress") {
				if rule.list("ports")[0].at("port") == "admin" {
					assert.NotEmpty(t, rule.at("from"), "the admin port is open to all")
				}
			}
		}
	})
	opens := func(values string, port float64) bool {
		policy := kind(render(t, values), "NetworkPolicy")[0]
		return slices.ContainsFunc(policy.list("spec", "egress")[0].list("ports"), func(p object) bool { return p.number("port") == port })
	}
	for values, port := range map[string]float64{
		`nightingale: {enabled: true, config: {pulsar: {admin_url: "https://pulsar.example.com"}}}`:                                          443,
		`sonic: {enabled: true, config: {pulsar: {auth: {oauth2: {issuer_url: "https://issuer.example.com/a", audience: "x"}}}}}`:            443,
		`pigeonhole: {enabled: true, config: {a: "http://pulsar.example.com"}}`:                                                              80,
		"common: {networkPolicy: {egressPorts: [7777]}}\nsonic: {enabled: true}":                                                             7777,
		"common: {networkPolicy: {egressPorts: [7777]}}\nsonic: {enabled: true, networkPolicy: {egressPorts: [7778]}, deployments: {a: {}}}": 7778,
		"common: {networkPolicy: {egressPorts: [7777]}}\nsonic: {enabled: true, networkPolicy: {monitoring: []}}":                            6379,
	} {
		assert.True(t, opens(values, port), values)
	}
	assert.False(t, opens("sonic: {enabled: true, config: {a: \"https://b:8443/c\", d: [http://e:8080]}}", 443))
	closed := kind(render(t, "pigeonhole: {enabled: true, networkPolicy: {monitoring: []}}"), "NetworkPolicy")
	require.Len(t, closed, 1)
	assert.Empty(t, closed[0].at("spec", "ingress"))
	assert.Empty(t, kind(render(t, "common: {networkPolicy: {enabled: false}}\npigeonhole: {enabled: true}"), "NetworkPolicy"))
}

func TestSecretsAreReferences(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, objects []object) {
		t.Helper()
		assert.Empty(t, kind(objects, "Secret"))
		for _, workload := range workloads(t, objects) {
			for _, c := range containers(workload) {
				for _, variable := range c.list("env") {
					assert.NotNil(t, variable.at("valueFrom"), variable)
				}
			}
		}
	})
	for values, path := range map[string]string{
		`sonic: {enabled: true, config: {redis: {password: "secret"}}}`:                                              "sonic.config.redis.password",
		`sonic: {enabled: true, config: {users: [{name: a, password: "secret"}]}}`:                                   "sonic.config.users[0].password",
		`sonic: {enabled: true, config: {redis: {url: "redis://:secret@redis:6379"}}}`:                               "sonic.config.redis.url",
		`sonic: {enabled: true, config: {}, deployments: {a: {config: {pulsar: {auth: {token: "secret"}}}}}}`:        "sonic-a.config.pulsar.auth.token",
		`nightingale: {enabled: true, config: {http: {bearer_tokens: ["secret"]}}}`:                                  "nightingale.config.http.bearer_tokens[0]",
		`eventbridge: {enabled: true, config: {ingest: {tenants: [{name: a, api_keys: ["secret"], buses: ["*"]}]}}}`: "eventbridge.config.ingest.tenants[0].api_keys[0]",
	} {
		for _, plain := range []string{"secret", "${SECRET:-secret}", "$ecret", "secret${SECRET}"} {
			_, err := rendered(chart, parse(t, strings.ReplaceAll(values, "secret", plain)))
			require.ErrorContains(t, err, path+": a", "%s with %s", values, plain)
		}
		_, err := rendered(chart, parse(t, strings.ReplaceAll(values, "secret", "${SECRET}")))
		assert.NoError(t, err, values)
	}
}

// A pod is made anew when its configuration changes, and only then.
func TestChangesOfTheConfiguration(t *testing.T) {
	t.Parallel()
	checksum := func(values string) any {
		return workloads(t, render(t, values))[0].at("spec", "template", "metadata", "annotations", "checksum/config")
	}
	one := checksum("sonic: {enabled: true, config: {ack: local}}")
	assert.NotEqual(t, one, checksum("sonic: {enabled: true, config: {ack: published}}"))
	assert.Equal(t, one, checksum("sonic: {enabled: true, replicas: 3, config: {ack: local}}"))
}

func TestInstancesOfEventbridge(t *testing.T) {
	t.Parallel()
	workload := workloads(t, render(t, "eventbridge: {enabled: true}"))[0]
	assert.Equal(t, "StatefulSet", workload.text("kind"), "names of pods stay")
	var from any
	for _, variable := range workload.list("spec", "template", "spec", "containers")[0].list("env") {
		if variable.at("name") == "EVENTBRIDGE_INSTANCE" {
			from = variable.at("valueFrom", "fieldRef", "fieldPath")
		}
	}
	assert.Equal(t, "metadata.name", from)
}

func TestWhatScales(t *testing.T) {
	t.Parallel()
	scaled := func(values string) int {
		return len(kind(render(t, values), "HorizontalPodAutoscaler"))
	}
	assert.Equal(t, 1, scaled("nightingale: {enabled: true, autoscaling: {enabled: true}}"))
	assert.Equal(t, 0, scaled("nightingale: {enabled: true}"))
	assert.Equal(t, 1, scaled("eventbridge: {enabled: true, autoscaling: {enabled: true}, config: {roles: [preprocessor]}}"))
	_, err := rendered(chart, parse(t, "eventbridge: {enabled: true, autoscaling: {enabled: true}}"))
	assert.ErrorContains(t, err, "only a deployment with config.roles [preprocessor]")
}
