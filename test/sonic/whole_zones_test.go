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

// conflicts are the policies of the whole test.
const conflicts = "SONIC_CONFLICTS=[{prefix: 'count:', policy: counter}, {prefix: 'none:', policy: none}]"

// databases are those that writers use.
const databases = 2

// A site is a zone of the whole test: a Redis, a Pulsar cluster and two Sonics.
type site struct {
	name   string
	index  int
	redis  *stack.RedisServer
	sonics []*service
}

// whole is all zones, what writes to them, and what has happened.
type whole struct {
	t       testing.TB
	seed    uint64
	r       *rand.Rand // of the faults
	long    bool       // a long run was asked for
	began   time.Time
	pulsars *proxy.Zones
	topic   string
	sites   []*site

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

func newWhole(t testing.TB, seed uint64, n int, long bool) *whole {
	t.Helper()
	w := &whole{
		t: t, seed: seed, r: rand.New(rand.NewPCG(seed, 0)), began: time.Now(), counts: map[fault]int{},
		ledger: newLedger(), long: long,
	}
	awaitOwner(t)
	w.pulsars = proxy.PulsarZones(t, n, stack.Memory("-Xms192m -Xmx512m -XX:MaxDirectMemorySize=256m"))
	ns := w.pulsars.Namespace(t)
	w.pulsars.KeepAll(t, ns)
	for _, c := range w.pulsars.Clusters {
		require.NoError(t, c.Admin(t.Context(), http.MethodPost, "/admin/v2/namespaces/"+ns+"/deduplication", true, nil))
	}
	w.topic = "persistent://" + ns + "/sonic"
	var names []string
	for i := range n {
		names = append(names, string(rune('a'+i)))
	}
	for i, name := range names {
		s := &site{name: name, index: i, redis: durable(t)}
		for range 2 {
			s.sonics = append(s.sonics, run(t,
				"SONIC_ZONE="+name, "SONIC_ZONES=["+strings.Join(names, ", ")+"]", "SONIC_TOPIC="+w.topic, "SONIC_REDIS_URL="+s.redis.URL(),
				"SONIC_PULSAR_URL="+w.pulsars.URL(i), "SONIC_PULSAR_LISTENER_NAME="+proxy.Listener, conflicts))
		}
		w.sites = append(w.sites, s)
	}
	for _, s := range w.sites {
		w.writable(s)
	}
	t.Cleanup(w.stopWriters) // also when the test has ended early
	w.event("%d zones are ready", n)
	return w
}

// event notes what happened.
func (w *whole) event(format string, args ...any) {
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
func (w *whole) do(s *site, args ...any) error {
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
func (w *whole) writable(s *site) {
	w.t.Helper()
	for i, e := range s.sonics {
		var err error
		for deadline := time.Now().Add(await.Patience); ; time.Sleep(5 * time.Millisecond) { // polling a condition
			require.True(w.t, e.Running(), "Sonic %d of zone %s has ended", i, s.name)
			c := e.clientNow(0, 3)
			err = c.Set(context.Background(), "mark:ready:"+s.name, i, 0).Err()
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
func (w *whole) awaitAll() {
	w.t.Helper()
	for n := range reach {
		mark := fmt.Sprint(time.Now().UnixNano(), ".", n)
		for _, s := range w.sites {
			require.NoError(w.t, w.do(s, "SET", "mark:"+s.name, mark), "zone %s", s.name)
		}
		for _, at := range w.sites {
			c := at.redis.Client(w.t)
			for _, of := range w.sites {
				var got string
				for deadline := time.Now().Add(await.Patience); got != mark; time.Sleep(2 * time.Millisecond) { // polling a condition
					got = c.Get(context.Background(), "mark:"+of.name).Val()
					if time.Now().After(deadline) {
						for i, e := range at.sonics {
							w.t.Logf("Sonic %d of zone %s: %+v", i, at.name, e.zones())
						}
						w.t.Fatalf("zone %s does not get what zone %s wrote", at.name, of.name)
					}
				}
			}
			_ = c.Close()
		}
	}
	w.event("settled")
}

// lagIsZero waits until the status pages show no lag and no current error.
func (w *whole) lagIsZero() {
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
func (w *whole) checked() {
	w.t.Helper()
	for i, s := range w.sites[:len(w.sites)-1] {
		var peers []string
		for _, o := range w.sites[i+1:] {
			peers = append(peers, fmt.Sprintf("{zone: %s, redis: {url: %q}}", o.name, o.redis.URL()))
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
