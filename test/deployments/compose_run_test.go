package deployments

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// Each service of the Compose files becomes ready with its command, environment and file, on servers
// of the stack in place of the containers, and ends in order.
func TestComposeServicesRun(t *testing.T) {
	for name, addresses := range map[string]func(*testing.T) []string{"compose.yaml": oneZone, "two-zones.yaml": twoZones} {
		t.Run(name, func(t *testing.T) {
			onStack := strings.NewReplacer(addresses(t)...)
			for _, service := range projects(t)[name].Services {
				if binary, found := strings.CutPrefix(strings.TrimSuffix(service.Image, ":dev"), "aviary/"); found {
					t.Run(service.Name, func(t *testing.T) { runService(t, service, binary, onStack) })
				}
			}
		})
	}
}

// runService starts a service with its addresses replaced by those of the stack.
func runService(t *testing.T, service types.ServiceConfig, binary string, onStack *strings.Replacer) {
	t.Helper()
	file := filepath.Join(t.TempDir(), binary+".yaml")
	for _, volume := range service.Volumes {
		if volume.Target == service.Command[1] {
			text, err := os.ReadFile(volume.Source)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(file, []byte(onStack.Replace(string(text))), 0o600))
		}
	}
	prefix := strings.ToUpper(binary) + "_"
	env := []string{prefix + "ADMIN_LISTEN=127.0.0.1:0"}
	switch binary {
	case "nightingale", "eventbridge":
		env = append(env, prefix+"HTTP_LISTEN=127.0.0.1:0")
	case "sonic":
		env = append(env, prefix+"LISTEN=127.0.0.1:0")
	}
	for key, value := range service.Environment {
		env = append(env, key+"="+onStack.Replace(*value))
	}
	p := systems.RunProgram(t, filepath.Join(binaries(t), binary), []string{service.Command[0], file}, env)
	ready := func() bool {
		status, _ := p.Ask(http.MethodGet, "/-/ready")
		return status == http.StatusOK
	}
	require.Eventually(t, ready, waitTimeout, 50*time.Millisecond, "not ready")
	p.Stop()
	assert.Contains(t, p.Log(), `"msg":"stopped"`)
}

// oneZone returns what to replace in compose.yaml and its files. It has run the script of pulsar-init.
func oneZone(t *testing.T) []string {
	t.Helper()
	pulsar, kafka, rabbitmq, redis := stack.Pulsar(t), stack.Kafka(t), stack.RabbitMQ(t), stack.PrivateRedis(t)
	home, err := stack.PulsarHome(t.Context(), os.Stderr)
	require.NoError(t, err)
	script, err := filepath.Abs(filepath.Join(composeFolder, "init", "pulsar.sh"))
	require.NoError(t, err)
	logs := t.TempDir()
	env := []string{"PULSAR_LOG_DIR=" + logs, "PULSAR_EXTRA_OPTS=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Duser.home=" + logs}
	said, err := run(t, env, "sh", "-c", `cd "$1" && exec sh "$2" "$3"`, "sh", home, script, pulsar.AdminURL())
	require.NoError(t, err, said)
	return []string{
		"pulsar://pulsar-ops:6650", pulsar.URL(), "pulsar://pulsar:6650", pulsar.URL(), "http://pulsar:8080", pulsar.AdminURL(),
		"kafka:9092", strings.Join(kafka.Brokers(), ","), "topics: [orders]", "topics: [" + kafka.Topic(t, 4) + "]",
		"amqp://rabbitmq:5672/", "amqp://" + rabbitmq.Addr() + "/", "aviary\n", "guest\n", "parcels}]", rabbitmq.Name(t) + "}]",
		"redis://redis:6379", redis.URL(),
	}
}

// twoZones returns what to replace in two-zones.yaml and its files.
func twoZones(t *testing.T) []string {
	t.Helper()
	geo, redisA, redisB := stack.Geo(t), stack.PrivateRedis(t), stack.PrivateRedis(t)
	return []string{
		"pulsar://pulsar-a:6650", geo.A.URL(), "http://pulsar-a:8080", geo.A.AdminURL(), "redis://redis-a:6379", redisA.URL(),
		"pulsar://pulsar-b:6650", geo.B.URL(), "http://pulsar-b:8080", geo.B.AdminURL(), "redis://redis-b:6379", redisB.URL(),
		"aviary/geo", geo.Namespace(t), "aviary/events", geo.Namespace(t),
	}
}
