package monitoring

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/IBM/sarama"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/pkg/messaging"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/stack/pulsaradmin"
	"github.com/aviaryhq/aviary/test/systems"
	"github.com/aviaryhq/aviary/test/systems/kafka"
	"github.com/aviaryhq/aviary/test/systems/pulsar"
)

// faults provoke the causes of alerts, and wait until these fire.
type faults struct {
	*fixture
	prometheus *prometheus
}

// ofSingleMessages: messages that are invalid, refused or encrypted, and topics that take none.
func (f faults) ofSingleMessages() {
	f.t.Helper()
	ctx := f.t.Context()
	f.invalid.Store(true)
	f.terminateQueued()
	require.NoError(f.t, f.parcel(ctx, amqp.Table{"kind": "a/b"}), "its topic would have another structure")
	topics := model.Topics{Namespace: f.ns}
	require.NoError(f.t, pulsar.Publish(ctx, f.pulsar.URL(), topics.Events("orders"), &messaging.Record{Payload: []byte("no event")}))
	f.produceEncrypted(f.shipments)
	f.prometheus.awaitAlerts("NightingaleSamplesLost", "PulsarRecordsFailed", "PigeonholeDeadLetters", "EventbridgeBusDeadLetters", "PulsarMessagesUnreadable",
		"NightingaleSamplesRejected")
	f.invalid.Store(false)
}

// terminateQueued terminates the topic of the Nightingale with ack: queued while nothing is in
// flight: of what is, a broker may never say that it is not stored.
func (f faults) terminateQueued() {
	f.t.Helper()
	f.quiet.Store(true)
	pending := `sum(aviary_messaging_pending_records{instance="` + f.queued.AddressNow("admin") + `"})`
	systems.Await(f.t, await.Patience, "nothing is in flight", func() bool {
		return len(f.prometheus.query(`max_over_time((`+pending+`)[3s:1s]) == 0`)) > 0
	})
	f.pulsar.Terminate(f.t, f.queuedTopic)
	f.quiet.Store(false)
}

// produceEncrypted publishes a message that only somebody with a key can read.
func (f faults) produceEncrypted(topic string) {
	f.t.Helper()
	home, err := stack.PulsarHome(f.t.Context(), os.Stderr)
	require.NoError(f.t, err)
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	require.NoError(f.t, err)
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	require.NoError(f.t, err)
	file := filepath.Join(f.t.TempDir(), "public.pem")
	require.NoError(f.t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}), 0o600))
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(home, "bin", "pulsar-client"), "--url", f.pulsar.URL(),
		"produce", topic, "-m", "secret", "-ekn", "key", "-ekv", "file://"+file)
	cmd.Env = append(os.Environ(), "PULSAR_LOG_DIR="+f.t.TempDir())
	out, err := cmd.CombinedOutput()
	require.NoError(f.t, err, "%s", out)
}

// ofPigeonhole: a process that does not run while its source loses messages, and a route that is
// paused.
func (f faults) ofPigeonhole() {
	f.t.Helper()
	f.pigeonhole.Kill()
	f.prometheus.awaitAlerts("PigeonholeDown")
	admin, err := sarama.NewClusterAdmin(f.kafka.Brokers(), kafka.Durable())
	require.NoError(f.t, err)
	defer admin.Close()
	require.NoError(f.t, admin.DeleteRecords(f.orders, map[int32]int64{0: -1})) // all that are there
	f.pigeonhole.Start()
	f.pigeonhole.Address("admin")
	f.prometheus.scrape(f.targets()...)
	f.prometheus.awaitAlerts("PigeonholeMessagesMissed")
	systems.Await(f.t, await.Patience, "the route is paused", func() bool {
		status, _ := f.pigeonhole.Ask(http.MethodPost, "/routes/shipments/pause")
		return status == http.StatusOK
	})
	f.prometheus.awaitAlerts("PigeonholeRouteDown", "PigeonholeRouteStalled")
	status, _ := f.pigeonhole.Ask(http.MethodPost, "/routes/shipments/resume")
	require.Equal(f.t, http.StatusOK, status)
}

// ofRedis: one has no memory, then does not run; a node of a cluster does not run.
func (f faults) ofRedis() {
	f.t.Helper()
	ctx := f.t.Context()
	c := f.redis[0].Client(f.t)
	require.NoError(f.t, c.ConfigSet(ctx, "maxmemory", "1mb").Err())
	require.NoError(f.t, f.nodes.Nodes()[1].Kill())
	f.prometheus.awaitAlerts("SonicRedisMemory", "SonicDown", "SonicClusterSlotsUnserved")
	require.NoError(f.t, c.ConfigSet(ctx, "maxmemory", "0").Err())
	require.NoError(f.t, f.nodes.Nodes()[1].Start(ctx))
}

// ofSubscribers: a server is unavailable, another refuses an event, and topics take nothing.
func (f faults) ofSubscribers() {
	f.t.Helper()
	f.unavailable.Store(true)
	f.pulsar.Terminate(f.t, f.sendTopic("terminated"))
	systems.Await(f.t, await.Patience, "an event is accepted", func() bool { return f.event("refused") == http.StatusAccepted })
	f.prometheus.awaitAlerts("EventbridgeDeadLetters", "EventbridgeSendTopicUnhealthy", "EventbridgeSubscriberBehind")
	letters := f.sendTopic("refusing-too") + "-DLQ"
	f.createTopic(letters)
	f.pulsar.Terminate(f.t, letters)
	systems.Await(f.t, await.Patience, "an event is accepted", func() bool { return f.event("refused too") == http.StatusAccepted })
	f.prometheus.awaitAlerts("PulsarCopiesNotStored")
	f.unavailable.Store(false)
}

// createTopic makes a topic, unless it is there.
func (f faults) createTopic(topic string) {
	f.t.Helper()
	err := f.pulsar.Admin(f.t.Context(), http.MethodPut, pulsaradmin.TopicPath(topic), nil, nil)
	if !pulsaradmin.IsStatus(err, http.StatusConflict) {
		require.NoError(f.t, err)
	}
}

// sendTopic is the send topic of a subscriber.
func (f faults) sendTopic(name string) string {
	f.t.Helper()
	s := model.Subscriber{}
	f.call(http.MethodGet, "/v1/buses/orders/subscribers/"+name, nil, &s)
	s.Bus, s.Name = "orders", name
	return model.Topics{Namespace: f.ns}.Send(&s)
}

// ofTheEngine: none runs while events come.
func (f faults) ofTheEngine() {
	f.t.Helper()
	f.engine.Kill()
	systems.Await(f.t, patience, "events wait", func() bool {
		for range 50 {
			f.event("order")
		}
		return len(f.prometheus.query(`sum(pulsar_subscription_back_log{subscription="engine"}) > 1000`)) > 0
	})
	f.prometheus.awaitAlerts("EventbridgeEngineBehind")
	f.engine.Start()
	f.engine.Address("admin")
	f.prometheus.scrape(f.targets()...)
}

// ofTheBroker: it is slow, stands still, and does not run.
func (f faults) ofTheBroker() {
	f.t.Helper()
	slow := func() bool {
		return len(f.prometheus.query(`count by (alertname) (last_over_time(ALERTS{alertstate="firing", alertname=~"PulsarSlow|NightingaleSlow"}[20s]))`)) == 2
	}
	systems.Await(f.t, patience, "the alerts on slowness fire", func() bool {
		require.NoError(f.t, f.pulsar.Pause())
		time.Sleep(3 * time.Second) // what is published waits as long
		require.NoError(f.t, f.pulsar.Resume())
		time.Sleep(500 * time.Millisecond) // it is stored
		return slow()
	})
	require.NoError(f.t, f.pulsar.Pause())
	stop := f.flood()
	f.prometheus.awaitAlerts("PulsarNotAcknowledging", "NightingaleRefusesSenders", "NightingaleNearCapacity", "EventbridgeRefusesSenders", "SonicOutboxFull",
		"SonicOutboxDelayed", "PigeonholeBehind", "SonicZoneBehind")
	stop()
	f.prometheus.awaitAlerts("SonicZonesDiffer") // its messages did not fit into the outbox of the second zone
	require.NoError(f.t, f.pulsar.Resume())
	require.NoError(f.t, f.pulsar.Kill())
	f.nightingale.Kill()
	f.queued.Kill()
	f.prometheus.awaitAlerts("PulsarReadInterrupted", "EventbridgeDown", "NightingaleDown")
}
