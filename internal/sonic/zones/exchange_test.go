package zones_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/internal/sonic/zones"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/stack"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }

// stored is a message of a zone's topic.
type stored struct {
	prev, last string
	payload    []byte

	slots     bool // the zone has a Redis Cluster: payload has groups
	watermark uint64
}

// zone is a Redis, or a Redis Cluster, with the library, and the zone's topic.
type zone struct {
	*zones.Zone
	t       testing.TB
	server  *stack.RedisServer // nil: a Redis Cluster
	cluster *clusterOf
	client  redis.UniversalClient
	out     string
	others  []string
	epoch   string

	mu    sync.Mutex // held while the zone's Redis takes part in the exchange of effects
	open  bool
	topic []stored
	at    map[string]int // origin to the next message
}

// zoneGroup is zones that exchange their effects.
type zoneGroup struct {
	t     testing.TB
	zones map[string]*zone
	names []string

	clustered bool // a zone has a Redis Cluster
}

// db returns the number of a database that all zones have: n, or 0 if one has a Redis Cluster.
func (w *zoneGroup) db(n int) int {
	if w.clustered {
		return 0
	}
	return n
}

// newZones opens zones, and has them exchange effects, as shippers and appliers do, until the test
// ends. A zone whose name ends with an asterisk, which is not part of it, has a Redis Cluster.
func newZones(t testing.TB, names ...string) *zoneGroup {
	t.Helper()
	w := &zoneGroup{t: t, zones: map[string]*zone{}}
	clustered := map[string]bool{}
	for _, word := range names {
		name, is := strings.CutSuffix(word, "*")
		w.names = append(w.names, name)
		clustered[name] = is
	}
	names = w.names
	for _, name := range names {
		z := &zone{t: t, at: map[string]int{}}
		if clustered[name] {
			w.clustered = true
			z.cluster = newClusterOf(t)
			z.client, z.Zone = z.cluster.client, zones.NewCluster(name, z.cluster.primaries)
		} else {
			z.server = stack.PrivateRedis(t, stack.Conf(map[string]string{"appendonly": "yes", "appendfsync": "no"}))
			c := z.server.Client(t)
			z.client, z.out, z.Zone = c, script.KeysOf(0).Outbox, zones.New(name, c)
		}
		z.others = slices.DeleteFunc(slices.Clone(names), func(other string) bool { return other == name })
		w.zones[name] = z
		z.begin("1", "0-0")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		every := 5 * time.Millisecond
		if w.clustered {
			every *= 4
		}
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for !t.Failed() {
			w.exchange(ctx)
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return w
}

// begin opens the zone's Redis, as its Sonic does.
func (z *zone) begin(epoch, floor string) {
	z.t.Helper()
	z.mu.Lock()
	defer z.mu.Unlock()
	z.open, z.epoch = true, epoch
	if z.cluster != nil {
		z.openPrimaries()
		return
	}
	ctx := z.t.Context()
	require.NoError(z.t, script.Load(ctx, z.client))
	args := []any{"FCALL", "sonic_open", 1, z.out, z.Name(), epoch, floor, "", len(z.others)}
	for _, other := range z.others {
		args = append(args, other)
	}
	require.NoError(z.t, z.client.Do(ctx, append(args, "lww", "n:", "none", "c:", "counter")...).Err())
}

// slotMoves reports whether Redis asks to try again because a slot is moving, as an applier
// does: the next exchange does.
func slotMoves(err error) bool { return redis.HasErrorPrefix(err, "TRYAGAIN") }

// exchange ships and applies what there is, and has all zones beat.
func (w *zoneGroup) exchange(ctx context.Context) {
	for _, name := range w.names {
		z := w.zones[name]
		z.mu.Lock()
		if z.open && ctx.Err() == nil {
			if !assert.NoError(w.t, z.ship(context.WithoutCancel(ctx))) {
				w.t.Fail()
			}
		}
		topic := slices.Clone(z.topic)
		z.mu.Unlock()
		for _, other := range z.others {
			o := w.zones[other]
			o.mu.Lock()
			for o.open && o.at[name] < len(topic) && ctx.Err() == nil {
				err := o.apply(context.WithoutCancel(ctx), name, topic[o.at[name]])
				if slotMoves(err) || !assert.NoError(w.t, err) {
					break
				}
				o.at[name]++
			}
			o.mu.Unlock()
		}
	}
}

func (z *zone) fcall(ctx context.Context, function string, args ...any) *redis.Cmd {
	return z.fcallAt(ctx, z.out, function, args...)
}

func (z *zone) fcallAt(ctx context.Context, out, function string, args ...any) *redis.Cmd {
	return z.client.Do(ctx, append([]any{"FCALL", function, 1, out}, args...)...)
}

// outOf returns the stream of effects of a key.
func (z *zone) outOf(key any) string {
	if z.cluster == nil {
		return z.out
	}
	return script.SlotKeys(cluster.Slot([]byte(fmt.Sprint(key)))).Outbox
}

// writes calls the function of a command, of which the first argument is a key.
func (z *zone) writes(ctx context.Context, db int, command string, args ...any) error {
	return z.fcallAt(ctx, z.outOf(args[0]), "sonic_"+command, append([]any{strconv.Itoa(db)}, args...)...).Err()
}

func (z *zone) ship(ctx context.Context) error {
	if z.cluster != nil {
		return z.shipSlots(ctx)
	}
	if err := z.fcall(ctx, "sonic_beat").Err(); err != nil {
		return err
	}
	prev := "0-0"
	if len(z.topic) > 0 {
		prev = z.topic[len(z.topic)-1].last
	}
	list, err := z.client.XRangeN(ctx, z.out, "("+prev, "+", 1000).Result()
	if err != nil {
		return err
	}
	var entries []wire.Entry
	var joiner wire.Joiner
	for _, m := range list {
		e, ok, err := joiner.Add(m.ID, m.Values)
		if err != nil {
			return err
		}
		if ok {
			entries = append(entries, e)
		}
	}
	taken := wire.Cut(entries, false)
	if taken == 0 {
		return nil
	}
	payload, _ := wire.Payload(entries[:taken])
	last := entries[taken-1].ID.String()
	z.topic = append(z.topic, stored{prev: prev, last: last, payload: payload})
	return z.fcall(ctx, "sonic_shipped", last).Err()
}

func (z *zone) apply(ctx context.Context, origin string, m stored) error {
	if z.cluster != nil || m.slots {
		return z.applySlots(ctx, origin, m)
	}
	return z.applyAt(ctx, z.out, origin, m)
}

func (z *zone) applyAt(ctx context.Context, out, origin string, m stored) error {
	reply, err := z.fcallAt(ctx, out, "sonic_apply", origin, "1", m.prev, m.last, "", "", m.payload).StringSlice()
	if err == nil && reply[0] != "applied" && reply[0] != "duplicate" {
		err = fmt.Errorf("%s of %s in %s: %s", m.last, origin, z.Name(), reply[0])
	}
	return err
}

// write runs a command as a client's of a database.
func (z *zone) write(db int, command string, args ...any) {
	z.t.Helper()
	err := z.writes(z.t.Context(), db, command, args...)
	if err != redis.Nil { //nolint:errorlint // Redis' own
		require.NoError(z.t, err)
	}
}

// behind runs a command that the zone's Sonic does not see.
func (z *zone) behind(db int, args ...any) {
	z.t.Helper()
	if z.cluster != nil {
		require.NoError(z.t, z.client.Do(z.t.Context(), args...).Err())
		return
	}
	pipe := z.client.TxPipeline()
	pipe.Do(z.t.Context(), "SELECT", db)
	cmd := pipe.Do(z.t.Context(), args...)
	pipe.Do(z.t.Context(), "SELECT", 0)
	_, err := pipe.Exec(z.t.Context())
	require.NoError(z.t, err)
	require.NoError(z.t, cmd.Err())
}

// check compares two zones.
func (w *zoneGroup) check(local, peer string) zones.Check {
	return zones.Check{Local: w.zones[local].Zone, Peer: w.zones[peer].Zone, Zones: w.names, ProgressTimeout: await.Patience}
}

// differences are the names of the keys that differ, "<db> <key>".
func (w *zoneGroup) differences(local, peer string) []string {
	w.t.Helper()
	c := w.check(local, peer)
	found, err := c.Run(w.t.Context())
	require.NoError(w.t, err)
	names := []string{}
	for _, d := range found {
		if d.Changing && isBusy(d.Name) {
			continue
		}
		require.False(w.t, d.Changing, d)
		names = append(names, fmt.Sprintf("%d %s", d.DB, d.Name))
	}
	return names
}

// writing has zones write all the time, until the test or stop ends it. acked are the counters'
// sums.
func (w *zoneGroup) writing(names ...string) (stop func() (acked map[string]int64)) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	var all sync.WaitGroup
	var mu sync.Mutex
	every := 10 * time.Millisecond
	if w.clustered { // the exchange of effects takes longer, and must not fall behind for good
		every *= 5
	}
	sums := map[string]int64{}
	for i, name := range names {
		z := w.zones[name]
		all.Go(func() {
			pace := time.NewTicker(every)
			defer pace.Stop()
			for n := 0; ctx.Err() == nil; n++ {
				<-pace.C
				counter := fmt.Sprintf("c:%d", n%7)
				for _, args := range busy(name, i, n) {
					function, rest := args[0].(string), args[1:]
					err := z.writes(context.WithoutCancel(ctx), 0, function, rest...)
					if err != redis.Nil && !assert.NoError(w.t, err) { //nolint:errorlint // Redis' own
						return
					}
				}
				if assert.NoError(w.t, z.writes(context.WithoutCancel(ctx), 0, "incrby", counter, n)) {
					mu.Lock()
					sums[counter] += int64(n)
					mu.Unlock()
				}
			}
		})
	}
	return func() map[string]int64 {
		cancel()
		all.Wait()
		return sums
	}
}

// isBusy tells whether writing writes the key.
func isBusy(key string) bool {
	return regexp.MustCompile(`^(busy.*|c:[0-6]|n:.:h?[0-9])$`).MatchString(key)
}

// busy are the commands that a writer sends in a step: names and arguments.
func busy(zone string, i, n int) [][]any {
	return [][]any{
		{"set", fmt.Sprintf("busy:%d", n%50), fmt.Sprint(zone, n)},
		{"hset", fmt.Sprintf("busy-h:%d", n%20), fmt.Sprint("f", n%9), n},
		{"hdel", fmt.Sprintf("busy-h:%d", (n+7)%20), fmt.Sprint("f", (n+i)%9)},
		{"sadd", fmt.Sprintf("busy-s:%d", n%20), n % 31},
		{"srem", fmt.Sprintf("busy-s:%d", (n+3)%20), (n + i) % 31},
		{"zadd", fmt.Sprintf("busy-z:%d", n%20), n % 100, n % 17},
		{"rpush", fmt.Sprintf("n:%s:%d", zone, n%10), n},
		{"hset", fmt.Sprintf("n:%s:h%d", zone, n%10), n % 5, n},
		{"lpop", fmt.Sprintf("n:%s:%d", zone, (n+1)%10)},
		{"set", fmt.Sprintf("busy-x:%d", n%11), n, "PX", 20 + n%50},
		{"pexpire", fmt.Sprintf("busy-h:%d", (n*3)%20), 60_000 + n},
		{"del", fmt.Sprintf("busy:%d", (n*7)%50)},
		{"del", fmt.Sprintf("busy-s:%d", (n*11)%20)},
	}
}
