package sonic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/proxy"
	"github.com/aviaryhq/aviary/test/stack"
	"github.com/aviaryhq/aviary/test/systems"
)

// conflicts are the policies of the randomised test.
const conflicts = "SONIC_CONFLICTS=[{prefix: 'count:', policy: counter}, {prefix: 'none:', policy: none}]"

// maxDatabases is how many databases writers use. A Redis Cluster has one.
const maxDatabases = 2

// A site is a zone of the randomised test: a Redis or a Redis Cluster, a Pulsar cluster and two Sonics.
type site struct {
	name   string
	index  int
	pulsar int                 // its Pulsar cluster
	redis  *stack.RedisServer  // nil: it has a Redis Cluster
	nodes  *stack.RedisCluster // nil: it has one Redis
	// replicas: each primary of the cluster has one.
	replicas bool
	sonics   []*service
}

// randomRun is all zones, what writes to them, and what has happened.
type randomRun struct {
	t       testing.TB
	seed    uint64
	r       *rand.Rand // of the faults
	long    bool       // a long run was asked for
	began   time.Time
	pulsars *proxy.Zones
	topic   string
	sites   []*site
	tags    []string // one is in each key that writers name; in front of a Redis Cluster, hash tags

	events  []string // what happened
	counts  map[fault]int
	gate    sync.RWMutex // writers hold it for reading
	paused  bool
	stop    chan struct{}
	writers sync.WaitGroup
	// generation counts how often writers were started.
	generation int
	ledger     *ledger
}

// newRandomRun starts a zone for each of redises, with so many Pulsar clusters, the first zone with the
// first of these.
func newRandomRun(t testing.TB, seed uint64, redises []startRedis, pulsars int, long bool) *randomRun {
	t.Helper()
	w := &randomRun{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), counts: map[fault]int{},
		ledger: newLedger(), long: long, tags: []string{""},
	}
	awaitOwner(t)
	w.pulsars = proxy.PulsarZones(t, pulsars, stack.Memory("-Xms192m -Xmx512m -XX:MaxDirectMemorySize=256m"))
	ns := w.pulsars.Namespace(t)
	w.pulsars.KeepAll(t, ns)
	for _, c := range w.pulsars.Clusters {
		require.NoError(t, c.Admin(t.Context(), http.MethodPost, "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	}
	w.topic = "persistent://" + ns + "/sonic"
	var names []string
	for i, start := range redises {
		s := &site{name: string(rune('a' + i)), index: i, pulsar: i % pulsars}
		if s.redis, s.nodes = start(t); s.nodes != nil {
			w.tags = hashTags()
			s.replicas = len(s.nodes.Nodes()) > len(primariesOf(t, s.nodes))
		}
		names, w.sites = append(names, s.name), append(w.sites, s)
	}
	for _, s := range w.sites {
		for range 2 {
			s.sonics = append(s.sonics, run(t,
				"SONIC_ZONE="+s.name, "SONIC_ZONES=["+strings.Join(names, ", ")+"]", "SONIC_TOPIC="+w.topic, "SONIC_REDIS_URL="+s.redisURL(),
				"SONIC_PULSAR_URL="+w.pulsars.URL(s.pulsar), "SONIC_PULSAR_LISTENER_NAME="+proxy.Listener, conflicts))
		}
	}
	for _, s := range w.sites {
		w.writable(s)
	}
	t.Cleanup(w.stopWriters) // also when the test has ended early
	w.event("%d zones are ready", len(w.sites))
	return w
}

// event notes what happened.
func (w *randomRun) event(format string, args ...any) {
	w.events = append(w.events, fmt.Sprintf("%7.3fs %s", time.Since(w.began).Seconds(), fmt.Sprintf(format, args...)))
}

// client is one of a Sonic as it is now. The caller closes it.
func (s *service) clientNow(db, protocol int) *redis.Client {
	return redis.NewClient(&redis.Options{
		Addr: s.AddressNow("redis"), DB: db, Protocol: protocol, MaxRetries: -1, DialerRetries: 1, PoolSize: 1,
		DialTimeout: await.Patience, ReadTimeout: await.Patience, WriteTimeout: await.Patience,
	})
}

// do sends a command to one of the zone's Sonics, whichever takes it first.
func (w *randomRun) do(s *site, args ...any) error {
	var last error
	for _, e := range s.sonics {
		c := e.clientNow(0, 3)
		ctx, cancel := context.WithTimeout(context.Background(), await.Patience)
		last = c.Do(ctx, args...).Err()
		cancel()
		_ = c.Close()
		if last == nil {
			return nil
		}
	}
	return last
}

// writable waits until both Sonics of a zone take writes.
func (w *randomRun) writable(s *site) {
	w.t.Helper()
	for i, e := range s.sonics {
		var err error
		for deadline := time.Now().Add(await.Patience); ; time.Sleep(5 * time.Millisecond) { // polling a condition
			require.True(w.t, e.Running(), "Sonic %d of zone %s has ended", i, s.name)
			c := e.clientNow(0, 3)
			for _, tag := range w.tags {
				if err = c.Set(context.Background(), "mark:ready:"+s.name+tag, i, 0).Err(); err != nil {
					break
				}
			}
			_ = c.Close()
			if err == nil {
				break
			}
			if time.Now().After(deadline) {
				w.t.Fatalf("Sonic %d of zone %s takes no writes: %v; %+v", i, s.name, err, e.zones())
			}
		}
	}
}

// reach is how many times marks cross: an effect that a zone cannot place has it ask another one,
// which answers, and the answer may have to be told.
const reach = 4

// awaitAll waits until each zone has what all others did, and what came of that.
func (w *randomRun) awaitAll() {
	w.t.Helper()
	for n := range reach {
		mark := fmt.Sprint(time.Now().UnixNano(), ".", n)
		for _, s := range w.sites {
			for _, tag := range w.tags {
				require.NoError(w.t, w.do(s, "SET", "mark:"+s.name+tag, mark), "zone %s", s.name)
			}
		}
		for _, at := range w.sites {
			c := at.client()
			for _, of := range w.sites {
				for _, tag := range w.tags {
					w.awaitMark(c, at, of, "mark:"+of.name+tag, mark)
				}
			}
			_ = c.Close()
		}
	}
	w.event("settled")
}

// awaitMark waits until a zone has what another one wrote.
func (w *randomRun) awaitMark(c redis.UniversalClient, at, of *site, key, mark string) {
	w.t.Helper()
	var got string
	for deadline := time.Now().Add(await.Patience); got != mark; time.Sleep(2 * time.Millisecond) { // polling a condition
		got = c.Get(context.Background(), key).Val()
		if time.Now().After(deadline) {
			for i, e := range at.sonics {
				w.t.Logf("Sonic %d of zone %s: %+v", i, at.name, e.zones())
			}
			w.t.Fatalf("zone %s has %q at %s, and zone %s wrote %q", at.name, got, key, of.name, mark)
		}
	}
}

// lagIsZero waits until the status pages show no lag and no current error.
func (w *randomRun) lagIsZero() {
	w.t.Helper()
	for _, s := range w.sites {
		for _, of := range w.sites {
			if of == s {
				continue
			}
			systems.Await(w.t, await.Patience, fmt.Sprintf("the lag of zone %s behind zone %s is 0", s.name, of.name), func() bool {
				return slices.ContainsFunc(s.sonics, func(e *service) bool {
					return slices.ContainsFunc(e.zones().Origins, func(o sonic.OriginStatus) bool {
						return o.Zone == of.name && o.LagCommands == 0 && !o.Gap && o.Unhealthy == ""
					})
				})
			})
		}
		for i, e := range s.sonics {
			systems.Await(w.t, await.Patience, fmt.Sprintf("Sonic %d of zone %s is ready", i, s.name), func() bool {
				status, _ := e.Ask(http.MethodGet, "/-/ready")
				return status == http.StatusOK
			})
		}
	}
}

// checked runs sonic -check in each zone, with all others as peers.
func (w *randomRun) checked() {
	w.t.Helper()
	for i, s := range w.sites[:len(w.sites)-1] {
		var peers []string
		for _, o := range w.sites[i+1:] {
			peers = append(peers, fmt.Sprintf("{zone: %s, redis: {url: %q}}", o.name, o.redisURL()))
		}
		ctx, cancel := context.WithTimeout(context.Background(), 2*await.Patience)
		env := append(slices.Clone(s.sonics[0].Env()), "SONIC_PEERS=["+strings.Join(peers, ", ")+"]")
		cmd := systems.Command(ctx, []string{"-check"}, env)
		out, err := cmd.CombinedOutput()
		cancel()
		assert.NoError(w.t, err, "sonic -check of zone %s:\n%s", s.name, out)
		assert.Contains(w.t, string(out), "0 keys differ")
	}
}
