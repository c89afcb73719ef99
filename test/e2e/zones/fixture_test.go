package zones

import (
	"fmt"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// first is the zone that has Pigeonhole and Eventbridge at the beginning; second is where they go when
// it is lost.
const (
	first  = 0
	second = 1
)

// A zone is a Pulsar cluster, a Redis and a Sonic.
type zone struct {
	name          string // as Sonic knows it
	cluster       string // as Pulsar does
	pulsar        *stack.PulsarServer
	redis         *stack.RedisServer
	direct        *redis.Client // of its Redis, without Sonic
	sonic         *systems.Process
	down          atomic.Bool     // its clients wait
	writing       sync.RWMutex    // held, shared, by a client that writes
	beforeCluster map[string]bool // orders from before its cluster
}

// fixture is all zones, what writes to them, and what was acknowledged.
type fixture struct {
	t        *testing.T
	began    time.Time
	binaries string // the folder of those that are started
	pulsars  *proxy.Zones
	zones    []*zone

	kafka       *stack.KafkaServer
	pigeonhole  *systems.Process
	eventbridge atomic.Pointer[systems.Process]
	sonics      *sonicLedger
	orders      *orders
	events      *events
	counted     map[string]int // acknowledged at the last table

	stop    chan struct{} // closed when clients are to end
	clients sync.WaitGroup
}

// The namespaces of Sonic, of Pigeonhole's orders and of Eventbridge.
const (
	sonicNamespace  = "aviary/sonic"
	ordersNamespace = "aviary/orders"
	eventsNamespace = "aviary/events"
	sonicTopic      = "persistent://" + sonicNamespace + "/sonic"
)

// newFixture starts all servers and services.
func newFixture(t *testing.T, binaries string) *fixture {
	t.Helper()
	w := &fixture{t: t, began: time.Now(), binaries: binaries, sonics: newSonicLedger(), events: newEvents(t)}
	w.pulsars = proxy.PulsarZones(t, 4, stack.Memory("-Xms192m -Xmx512m -XX:MaxDirectMemorySize=256m"))
	for i, cluster := range w.pulsars.Clusters {
		name := string(rune('a' + i))
		w.zones = append(w.zones, &zone{
			name: name, cluster: "zone-" + name, pulsar: cluster,
			redis: stack.PrivateRedis(t, stack.Conf(map[string]string{"appendonly": "yes", "appendfsync": "always"})),
		})
	}
	for i, z := range w.zones {
		z.direct = z.redis.Client(t)
		// Each zone's Sonic writes to its cluster. Pigeonhole and the registry of Eventbridge have
		// exclusive producers, which let no replication in: only their own zone replicates.
		w.namespace(z, sonicNamespace, w.clusters(0, 1, 2, 3))
		for _, ns := range []string{ordersNamespace, eventsNamespace} {
			if i == first {
				w.namespace(z, ns, w.clusters(0, 1, 2, 3))
			} else {
				w.namespace(z, ns, w.clusters(i))
			}
		}
	}
	w.kafka = stack.PrivateKafka(t)
	w.orders = newOrders(w)
	for i, z := range w.zones {
		z.sonic = systems.RunProgram(t, w.binary("sonic"), nil, w.sonicEnv(i))
	}
	w.pigeonhole = w.startPigeonhole(first, "orders")
	w.eventbridge.Store(w.startEventbridge(first))
	for _, z := range w.zones {
		w.awaitReady(z.sonic)
	}
	w.awaitReady(w.pigeonhole)
	w.awaitReady(w.eventbridge.Load())
	w.events.define(w)
	w.say("four zones are ready")
	return w
}

// clusters are the names of Pulsar clusters.
func (w *fixture) clusters(indices ...int) (names []string) {
	for _, i := range indices {
		names = append(names, w.zones[i].cluster)
	}
	return names
}

// namespace makes a namespace in one cluster, which replicates what is written there to clusters.
func (w *fixture) namespace(z *zone, ns string, clusters []string) {
	w.t.Helper()
	require.NoError(w.t, z.pulsar.Admin(w.t.Context(), http.MethodPut, "/admin/v2/namespaces/"+ns, map[string]any{
		"replication_clusters": clusters, "deduplicationEnabled": true,
		"retention_policies": map[string]int{"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
	}, nil))
}

// say prints what happens.
func (w *fixture) say(format string, args ...any) {
	fmt.Fprintf(os.Stdout, "%6.1fs %s\n", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...))
}

func (w *fixture) awaitReady(p *systems.Process) {
	w.t.Helper()
	w.await(p.Env()[0]+" is ready", func() bool {
		status, _ := p.Ask(http.MethodGet, "/-/ready")
		return status == http.StatusOK
	})
}

// await waits until a condition holds.
func (w *fixture) await(what string, is func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(settleLimit); !is(); time.Sleep(50 * time.Millisecond) { // polling a condition
		if time.Now().After(deadline) {
			w.t.Fatalf("not within %s: %s", settleLimit, what)
		}
	}
}

// cut ends all that crosses between a zone and the others, both ways, and returns what restores it.
func (w *fixture) cut(i int) (restore func()) {
	var links []*proxy.Proxy
	for j := range w.zones {
		if j != i {
			links = append(links, w.pulsars.Links[i][j], w.pulsars.Links[j][i])
		}
	}
	for _, l := range links {
		l.Cut()
	}
	return func() {
		for _, l := range links {
			require.NoError(w.t, l.Restore())
		}
	}
}

// keepWriting lets clients write for a while.
func (w *fixture) keepWriting(d time.Duration) { time.Sleep(d) } // the load between faults

// begin starts all clients.
func (w *fixture) begin() {
	w.stop = make(chan struct{})
	for _, z := range w.zones {
		w.clientsOf(z)
	}
	w.clients.Go(func() { w.orders.produce(w) })
	w.clients.Go(func() { w.events.send(w) })
}

// clientsOf starts the clients of a zone's Sonic.
func (w *fixture) clientsOf(z *zone) {
	for n := range 2 {
		w.clients.Go(func() { w.sonics.write(w, z, n) })
	}
}

// end stops all clients, and waits until each has its last answer.
func (w *fixture) end() {
	close(w.stop)
	w.clients.Wait()
}

// tick calls do every so often until clients are to end or do returns false.
func (w *fixture) tick(every time.Duration, do func(n int) bool) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for n := 0; ; n++ {
		select {
		case <-ticker.C:
			if !do(n) {
				return
			}
		case <-w.stop:
			return
		}
	}
}

// ended stops clients of a test that has ended early.
func (w *fixture) ended() {
	select {
	case <-w.stop:
	default:
		w.end()
	}
}
