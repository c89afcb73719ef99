package zones

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/systems"
)

func (w *fixture) binary(service string) string { return filepath.Join(w.binaries, service) }

func (w *fixture) sonicEnv(i int) []string {
	z := w.zones[i]
	return []string{
		"SONIC_ZONE=" + z.name, "SONIC_ZONES=a,b,c,d", "SONIC_TOPIC=" + sonicTopic, "SONIC_REDIS_URL=" + z.redis.URL(),
		"SONIC_PULSAR_URL=" + w.pulsars.URL(i), "SONIC_PULSAR_ADMIN_URL=" + z.pulsar.AdminURL(), "SONIC_PULSAR_LISTENER_NAME=" + proxy.Listener,
		"SONIC_CONFLICTS=[{prefix: 'count:', policy: counter}]", "SONIC_LISTEN=127.0.0.1:0", "SONIC_ADMIN_LISTEN=127.0.0.1:0",
	}
}

// peers are the Redis of other zones, for -check, -repair and -bootstrap.
func (w *fixture) peers(others ...int) string {
	var list []string
	for _, i := range others {
		list = append(list, fmt.Sprintf("{zone: %s, redis: {url: %q}}", w.zones[i].name, w.zones[i].redis.URL()))
	}
	return "SONIC_PEERS=[" + strings.Join(list, ", ") + "]"
}

func (w *fixture) startPigeonhole(i int, group string) *systems.Process {
	w.t.Helper()
	file := filepath.Join(w.t.TempDir(), "pigeonhole.yaml")
	require.NoError(w.t, os.WriteFile(file, fmt.Appendf(nil, `
routes:
- name: orders
  source: {kafka: {brokers: [%q], group: %s, instance_id: orders-0, topics: [%s]}}
  sink: {pulsar: {url: %q, listener_name: %s, partition: source}}
  to: %s
  guarantee: effectively_once
`, w.kafka.Brokers()[0], group, w.orders.source, w.pulsars.URL(i), proxy.Listener, w.orders.topic), 0o600))
	return systems.RunProgram(w.t, w.binary("pigeonhole"), []string{"-config.file", file},
		[]string{"PIGEONHOLE_NAME=zone-" + w.zones[i].name, "PIGEONHOLE_ADMIN_LISTEN=127.0.0.1:0"})
}

func (w *fixture) startEventbridge(i int) *systems.Process {
	w.t.Helper()
	z := w.zones[i]
	return systems.RunProgram(w.t, w.binary("eventbridge"), nil, []string{
		"EVENTBRIDGE_INSTANCE=zone-" + z.name, "EVENTBRIDGE_HTTP_LISTEN=127.0.0.1:0", "EVENTBRIDGE_ADMIN_LISTEN=127.0.0.1:0",
		"EVENTBRIDGE_PULSAR_URL=" + w.pulsars.URL(i), "EVENTBRIDGE_PULSAR_LISTENER_NAME=" + proxy.Listener,
		"EVENTBRIDGE_PULSAR_ADMIN_URL=" + z.pulsar.AdminURL(), "EVENTBRIDGE_TOPICS_NAMESPACE=" + eventsNamespace,
		"EVENTBRIDGE_TARGETS_ALLOW=[127.0.0.0/8]",
	})
}
