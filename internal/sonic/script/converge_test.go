package script_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
)

// parameters of a run of the convergence test.
type parameters struct {
	seed  uint64
	steps int
}

// fromEnvironment returns an ordinary run's parameters: a seed that is always the same, and steps.
// AVIARY_TEST_STEPS asks for a run of as many, with a seed of its own unless AVIARY_TEST_SEED has
// one. What comes of a seed depends on the time, too: expiries are of real time.
func fromEnvironment(t *testing.T, steps int) parameters {
	t.Helper()
	p := parameters{seed: 1, steps: steps}
	if text := os.Getenv("AVIARY_TEST_STEPS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		p.seed, p.steps = rand.Uint64(), n
	}
	if text := os.Getenv("AVIARY_TEST_SEED"); text != "" {
		seed, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		p.seed = seed
	}
	t.Logf("AVIARY_TEST_SEED=%d AVIARY_TEST_STEPS=%d", p.seed, p.steps)
	return p
}

// Zones that write to the same keys at the same time hold the same at the end, whatever the order
// of arrival: what a fold of all effects in the order of their versions gives.
func TestZonesConverge(t *testing.T) { converge(t, 1000, chaos{}) }

// The same of writes that are mostly to lists and streams.
func TestListsAndStreamsConverge(t *testing.T) { converge(t, 700, chaos{lists: 80}) }

// The same of writes that mostly change when few keys expire, with clocks that often are ahead.
func TestExpiriesConverge(t *testing.T) { converge(t, 700, chaos{expiries: 80}) }

// The same of writes among which zones flush databases.
func TestFlushesConverge(t *testing.T) { converge(t, 700, chaos{flushes: true}) }

// converge makes zones do random things, of the kinds that like names.
func converge(t *testing.T, steps int, like chaos) {
	t.Helper()
	t.Parallel()
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}} {
		t.Run(strconv.Itoa(len(names)), func(t *testing.T) {
			t.Parallel()
			like.run(t, steps, names)
		})
	}
}

// run makes zones with these names do random things.
func (c chaos) run(t *testing.T, steps int, names []string) {
	t.Helper()
	p := fromEnvironment(t, steps)
	r := rand.New(rand.NewPCG(p.seed, 0))
	w := c.newFixture(t, r, names...)
	c.fixture, c.makers, c.acked = w, newMakers(t), make(map[string]int64)
	next := 0
	for n := range p.steps {
		if n == next { // differences are soon overwritten
			c.drain()
			c.compare(false)
			next += 20 + r.IntN(150)
		}
		c.step()
	}
	c.finish()
	for _, v := range w.history() {
		if v.effect[0] == "R" || v.effect[0] == "L" {
			w.counts[v.effect[0]]++
		}
	}
	t.Log(w.counts)
}

// A chaos makes random things happen in a fixture.
type chaos struct {
	*fixture
	makers *makers
	acked  map[string]int64 // counter to the sum of its acknowledged increments
	lossy  bool             // increments were lost with an older Redis

	// Of 100 writes: how many are to lists and streams, and how many are about expiries. The others
	// are to keys of all types.
	lists, expiries int

	flushes bool // databases are flushed; then all keys are under lww

	clustered []string // zones that are as a Redis Cluster
}

// newFixture makes the fixture for it.
func (c *chaos) newFixture(t testing.TB, r *rand.Rand, names ...string) *fixture {
	t.Helper()
	if c.flushes {
		return newFixtureOf(t, r, []any{"lww"}, nil, names...)
	}
	return newMixedFixture(t, r, []any{"lww", "n:", "none", "c:", "counter"}, nil, c.clustered, names...)
}

func (c *chaos) step() {
	c.t.Helper()
	z := c.zones[c.r.IntN(len(c.zones))]
	others := z.others()
	o := others[c.r.IntN(len(others))]
	switch n := c.r.IntN(1000); {
	case n < 400:
		c.write(z, 1+c.r.IntN(12))
	case n < 560:
		z.ship(1 + c.r.IntN(40))
	case n < 800:
		for range 1 + c.r.IntN(4) {
			z.deliver(o)
		}
	case n < 830:
		z.deliverAgain(o)
	case n < 850:
		z.deliverTooEarly(o)
	case n < 910:
		z.beat()
	case n < 960:
		z.prune(c.r.IntN(4))
	case n < 970:
		z.keepCopy()
	case n < 975:
		z.restart(false)
	case n < 985:
		if c.mixed {
			return
		}
		z.restart(true)
		c.lossy = true
	case n < 990 || c.expiries > 0 && n < 996: // a clock that is ahead
		z.open(fmt.Sprintf("%d-%d", time.Now().UnixMilli()+c.r.Int64N(200), c.r.IntN(5)))
	default:
		time.Sleep(time.Duration(c.r.IntN(30)) * time.Millisecond) // expiries are of real time
	}
}

// write sends a pipeline of random writes to a zone.
func (c *chaos) write(z *zone, n int) {
	c.t.Helper()
	if !z.ready {
		return
	}
	ctx := context.Background()
	var pipe redis.Pipeliner
	mode := strconv.Itoa(c.r.IntN(6) / 5) // mostly db 0
	tx := c.r.IntN(10) == 0
	if tx {
		pipe = z.client.TxPipeline()
		mode += fmt.Sprintf("t%x", c.r.Uint64())
	} else {
		pipe = z.client.Pipeline()
	}
	type increment struct {
		counter string
		by      int64
	}
	increments := make(map[redis.Cmder]increment)
	several := make(map[redis.Cmder][]increment) // of calls of several writes
	var many []any
	var manyOf []increment
	joining := !tx && c.r.IntN(2) == 0
	shard := -1
	if tx && z.shards != nil {
		shard = c.r.IntN(len(z.shards.outs))
	}
	first := z.out
	flush := func() {
		if len(many) > 0 {
			several[pipe.Do(ctx, append([]any{"FCALL", "sonic_many", 1, first, mode}, many...)...)] = manyOf
		}
		many, manyOf = nil, nil
	}
	for range n {
		args, out := c.commandOf(z, shard)
		if joining && script.InMany(args[0].(string)) && len(args) < 10 {
			if len(many) == 0 {
				first = out
			}
			many = append(many, fmt.Sprintf("%s %d", strings.ToUpper(args[0].(string)), len(args)-1))
			if z.shards != nil {
				many = append(many, out)
			}
			many = append(many, args[1:]...)
			in := increment{}
			if args[0] == "incrby" {
				in = increment{mode[:1] + ":" + args[1].(string), args[2].(int64)}
			}
			manyOf = append(manyOf, in)
			continue
		}
		flush()
		cmd := pipe.Do(ctx, append([]any{"FCALL", "sonic_" + args[0].(string), 1, out, mode}, args[1:]...)...)
		if args[0] == "incrby" {
			increments[cmd] = increment{mode[:1] + ":" + args[1].(string), args[2].(int64)}
		}
	}
	flush()
	if tx {
		pipe.Do(ctx, "FCALL", "sonic_tx", 1, z.shard(shard), mode)
	}
	cmds, _ := pipe.Exec(ctx)
	require.NotEmpty(c.t, cmds)
	for _, cmd := range cmds {
		if all, ok := several[cmd]; ok {
			replies, err := cmd.(*redis.Cmd).Slice()
			require.NoError(c.t, err)
			require.Len(c.t, replies, len(all))
			for i, reply := range replies {
				err, _ := reply.(error)
				if c.check(cmd, err) {
					c.acked[all[i].counter] += all[i].by
				}
			}
			continue
		}
		if c.check(cmd, cmd.Err()) {
			if in, ok := increments[cmd]; ok {
				c.acked[in.counter] += in.by
			}
		}
	}
}

// check reports whether a write was done. It fails for errors that Redis would not give for the
// command itself.
func (c *chaos) check(cmd redis.Cmder, err error) bool {
	c.t.Helper()
	if err == nil {
		return true
	}
	text := err.Error()
	if err != redis.Nil && !strings.HasPrefix(text, "WRONGTYPE") && !strings.HasPrefix(text, "ERR ") { //nolint:errorlint // Redis' own
		c.t.Fatalf("%v: %v", cmd.Args(), err)
	}
	if strings.Contains(text, "script") {
		c.t.Fatalf("%v: %v", cmd.Args(), err)
	}
	return false
}

func (c *chaos) element() string { return string(rune('p' + c.r.IntN(5))) }

func (c *chaos) value() string { return fmt.Sprintf("v%d", c.r.IntN(1000)) }

// key returns a key on which writes of all types meet, or one that is mostly of one type.
func (c *chaos) key(kind string) string {
	if c.r.IntN(8) == 0 {
		return fmt.Sprintf("k%d", c.r.IntN(2))
	}
	return fmt.Sprintf("%s%d", kind, c.r.IntN(3))
}

func (c *chaos) any() string { return c.key([]string{"str", "h", "s", "z", "l", "x"}[c.r.IntN(6)]) }

// ms returns a time to live: mostly over soon.
func (c *chaos) ms() int {
	if c.r.IntN(3) == 0 {
		return 500 + c.r.IntN(500)
	}
	return 1 + c.r.IntN(120)
}

// command returns a random write: the command in lower case, and its arguments.
func (c *chaos) command(z *zone) []any {
	r := c.r
	elements := func(n int) []any {
		var list []any
		for range 1 + r.IntN(n) {
			list = append(list, c.element())
		}
		return list
	}
	if c.flushes && r.IntN(80) == 0 {
		return []any{[]string{"flushdb", "flushdb", "flushall"}[r.IntN(3)]}
	}
	if r.IntN(100) < c.lists {
		if r.IntN(3) == 0 {
			return c.stream(z, fmt.Sprintf("x%d", r.IntN(2)))
		}
		return c.list(fmt.Sprintf("l%d", r.IntN(2)), fmt.Sprintf("l%d", r.IntN(2)))
	}
	if r.IntN(100) < c.expiries {
		return c.expiry()
	}
	switch r.IntN(46) {
	case 40, 41, 42, 43:
		return c.inPlace(c.key("str"))
	case 44, 45:
		return c.move(c.any(), c.any())
	case 0:
		return []any{"set", c.key("str"), c.value()}
	case 1:
		return []any{"set", c.key("str"), c.value(), "PX", c.ms()}
	case 2:
		return c.inPlace(c.key("str"))
	case 3:
		return []any{"set", c.key("str"), c.value(), "KEEPTTL"}
	case 4, 5, 6, 7:
		args := []any{"hset", c.key("h")}
		for _, e := range elements(3) {
			args = append(args, e, c.value())
		}
		return args
	case 8:
		return append([]any{"hdel", c.key("h")}, elements(4)...)
	case 9:
		return []any{"hincrby", c.key("h"), "n", r.IntN(5)}
	case 10, 11, 12:
		return append([]any{"sadd", c.key("s")}, elements(3)...)
	case 13:
		return append([]any{"srem", c.key("s")}, elements(4)...)
	case 14:
		return []any{"spop", c.key("s")}
	case 15:
		return []any{"smove", c.key("s"), c.key("s"), c.element()}
	case 16, 17, 18:
		args := []any{"zadd", c.key("z")}
		for _, e := range elements(3) {
			args = append(args, r.IntN(20), e)
		}
		return args
	case 19:
		return append([]any{"zrem", c.key("z")}, elements(4)...)
	case 20:
		return []any{"zpopmin", c.key("z")}
	case 21:
		return []any{"zincrby", c.key("z"), r.IntN(5), c.element()}
	case 22, 23, 34, 35, 36:
		return c.list(c.key("l"), c.key("l"))
	case 37, 38, 39:
		return c.stream(z, c.key("x"))
	case 24:
		return []any{"del", c.any()}
	case 25, 26, 27:
		return []any{"pexpire", c.any(), c.ms()}
	case 28:
		return []any{"persist", c.any()}
	case 29:
		return c.move(c.any(), c.any())
	case 30:
		return []any{"sunionstore", c.key("s"), c.key("s"), c.key("s")}
	case 31:
		return []any{"getex", c.key("str"), "PX", c.ms()}
	case 32:
		return c.single(z)
	default:
		if c.flushes {
			return []any{"incr", c.key("str")}
		}
		return []any{"incrby", fmt.Sprintf("c:%d", r.IntN(2)), r.Int64N(100) - 30}
	}
}

// inPlace returns a write that changes a part of a string.
func (c *chaos) inPlace(key string) []any {
	switch c.r.IntN(6) {
	case 0:
		return []any{"setrange", key, c.r.IntN(8), c.element()}
	case 1:
		return []any{"setbit", key, c.r.IntN(40), c.r.IntN(2)}
	case 2:
		return []any{"bitfield", key, "GET", "u8", 0, "INCRBY", "u8", "#1", c.r.IntN(100)}
	case 3:
		return []any{"pfadd", "hll" + key, c.value()}
	default:
		return []any{"append", key, c.element()}
	}
}

// move returns a write that moves a key, or copies it.
func (c *chaos) move(key, other string) []any {
	switch c.r.IntN(4) {
	case 0:
		return []any{"copy", key, other, "REPLACE"}
	case 1:
		return []any{"copy", key, other, "DB", c.r.IntN(2), "REPLACE"}
	case 2:
		return []any{"move", key, c.r.IntN(2)}
	default:
		return []any{"rename", key, other}
	}
}

// expiry returns a write to one of few keys, which mostly changes when it expires.
func (c *chaos) expiry() []any {
	r := c.r
	key := []string{"str0", "h0", "h1", "s0", "l0", "k0"}[r.IntN(6)]
	switch r.IntN(16) {
	case 0, 1, 2, 3:
		return []any{"pexpire", key, c.ms()}
	case 4, 5:
		return []any{"persist", key}
	case 6:
		return []any{"getex", "str0", "PERSIST"}
	case 7:
		return []any{"set", "str0", c.value(), "PX", c.ms()}
	case 8:
		return []any{"set", "str0", c.value(), "KEEPTTL"}
	case 9:
		return []any{"rpush", "l0", c.element()}
	case 10:
		return []any{"sadd", []string{"s0", "k0"}[r.IntN(2)], c.element()}
	case 11:
		return []any{"spop", "s0"}
	case 12:
		return []any{"hdel", "h0", c.element(), c.element()}
	case 13:
		return []any{"rename", "h0", "h1"}
	default:
		return []any{"hset", []string{"h0", "h1", "k0"}[r.IntN(3)], c.element(), c.value()}
	}
}

// list returns a write to lists.
func (c *chaos) list(key, other string) []any {
	r := c.r
	side := func() string { return []string{"LEFT", "RIGHT"}[r.IntN(2)] }
	switch r.IntN(16) {
	case 0, 1, 2:
		return []any{"rpush", key, c.element()}
	case 3, 4:
		return []any{"lpush", key, c.element(), c.element()}
	case 5:
		return []any{"lpop", key}
	case 6:
		return []any{"rpop", key, 1 + r.IntN(3)}
	case 7:
		return []any{"lset", key, r.IntN(3), c.element()}
	case 8:
		return []any{"linsert", key, "BEFORE", c.element(), c.element()}
	case 9:
		return []any{"lrem", key, r.IntN(3) - 1, c.element()}
	case 10:
		return []any{"ltrim", key, r.IntN(2), 5}
	case 11, 12:
		return []any{"lmove", key, other, side(), side()}
	case 13:
		return []any{"lmpop", 2, key, other, side(), "COUNT", 2}
	case 14:
		return []any{"rpushx", key, c.element()}
	default:
		return []any{"sort", key, "ALPHA", "STORE", other}
	}
}

// stream returns a write to a stream.
func (c *chaos) stream(z *zone, key string) []any {
	r := c.r
	switch r.IntN(8) {
	case 0:
		return []any{"xadd", key, "MAXLEN", "~", 2, "*", "f", c.value()}
	case 1:
		return []any{"xadd", key, "MAXLEN", r.IntN(4), "*", "f", c.value()}
	case 2:
		return []any{"xtrim", key, "MAXLEN", r.IntN(4)}
	case 3:
		return []any{"xsetid", key, fmt.Sprintf("%d-7", time.Now().UnixMilli()+2)}
	case 4:
		list, err := z.client.XRange(context.Background(), key, "-", "+").Result()
		if err != nil || len(list) == 0 { // it may be of another type
			return []any{"xdel", key, "1-1"}
		}
		return []any{"xdel", key, list[r.IntN(len(list))].ID}
	default:
		return []any{"xadd", key, "*", "f", c.value()}
	}
}

// single returns a write to a key of policy none, which one zone writes.
func (c *chaos) single(z *zone) []any {
	key := fmt.Sprintf("n:%s:%d", z.name, c.r.IntN(4))
	switch c.r.IntN(14) {
	case 6, 7, 8, 9:
		return c.list(key+"l", fmt.Sprintf("n:%s:%dl", z.name, c.r.IntN(2)))
	case 10:
		return c.stream(z, key+"x")
	case 11:
		return []any{"pexpire", key + "l", c.ms()}
	case 12:
		return []any{"persist", key + "l"}
	case 13:
		return []any{"del", key + "x"}
	case 0:
		return []any{"hdel", key, c.element()}
	case 1:
		return []any{"pexpire", key, c.ms()}
	case 2:
		return []any{"persist", key}
	case 3:
		return []any{"del", key}
	default:
		return []any{"hset", key, c.element(), c.value()}
	}
}

// expiring tells whether an effect names a time between from and to. The clocks of streams are
// ahead by less than what is added.
func expiring(effects []versioned, from, to int64) bool {
	for _, v := range effects {
		if at := latest(v); at > from-300 && at < to+300 {
			return true
		}
	}
	return false
}

// latest returns the largest value of an effect that looks like a time in milliseconds.
func latest(v versioned) int64 {
	at := int64(0)
	for _, text := range v.effect[4:] {
		if len(text) != len("1795341757671") || text[0] != '1' {
			continue
		}
		if n, err := strconv.ParseInt(text, 10, 64); err == nil {
			at = max(at, n)
		}
	}
	return at
}

// awaitExpiries waits until all keys that expire soon have, and delivers what came of that.
func (w *fixture) awaitExpiries() {
	w.t.Helper()
	soon := int64(0)
	for _, v := range w.history() {
		soon = max(soon, latest(v))
	}
	for _, z := range w.zones {
		for db := range 2 {
			for _, v := range z.data(db) {
				soon = max(soon, v.expires)
			}
		}
	}
	time.Sleep(time.Until(time.UnixMilli(soon + 250))) // clocks of streams are ahead by less
	w.drain()
}

// finish delivers everything, waits until what expires soon has, and compares.
func (c *chaos) finish() {
	c.t.Helper()
	c.drain()
	c.awaitExpiries()
	c.compare(true)
	for range 4 {
		for _, z := range c.zones {
			z.beat()
		}
		c.drain()
	}
	for _, z := range c.zones {
		z.prune(0)
		all := z.hashes("ver")
		for db := range 16 { // what flushes left
			delete(all, fmt.Sprintf("f%d", db))
		}
		for db := range 2 { // what operations on strings, lists and streams name
			for key, v := range z.data(db) {
				field := fmt.Sprintf("k%d:%s", db, key)
				if v.kind == "list" || v.kind == "stream" || v.kind == "string" && strings.HasSuffix(all[field], " L") {
					assert.True(c.t, !c.flushes && strings.HasPrefix(key, "n:") || strings.HasSuffix(all[field], " L"), "%s of zone %s: %q", field, z.name, all[field])
					delete(all, field)
				}
			}
		}
		require.Empty(c.t, all, "versions that nothing names")
		require.Empty(c.t, z.hashes("requests"), "wants that nobody answered")
		require.Empty(c.t, z.hashes("answers"), "answers that were put off")
	}
	c.compare(true)
}

// known returns what the hash of versions holds of a key.
func (z *zone) known(db int, key string) map[string]string {
	z.fixture.t.Helper()
	all := z.hashes("ver")
	maps.DeleteFunc(all, func(field, _ string) bool {
		return !strings.HasSuffix(field, fmt.Sprintf("%d:%s", db, key)) && !strings.HasPrefix(field, fmt.Sprintf("e%d:%d:%s", db, len(key), key))
	})
	return all
}

// compare compares all keys, unless one may be expiring just now, which only the last comparisons
// know for sure.
func (c *chaos) compare(all bool) {
	c.t.Helper()
	for _, v := range c.history() {
		if op := v.effect[0]; v.effect[1] == "l" && (op == "R" || op == "L") {
			c.makers.of(v) // others name it
		}
	}
	history := c.byKey()
	differ := 0
	for db := range 2 {
		var held []map[string]value
		keys := make(map[string]bool)
		from := time.Now().UnixMilli()
		for _, z := range c.zones {
			held = append(held, z.data(db))
		}
		now := time.Now().UnixMilli()
		for _, data := range held {
			for key := range data {
				keys[key] = true
			}
		}
		for key := range history {
			if name, ok := strings.CutPrefix(key, strconv.Itoa(db)+":"); ok && name != "" {
				keys[name] = true
			}
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			effects := history[strconv.Itoa(db)+":"+key]
			if !all && expiring(effects, from, now) {
				continue
			}
			want, exists := held[0][key]
			equal, soon := true, false
			for _, data := range held {
				got, there := data[key]
				equal = equal && there == exists && got == want
				// A zone whose stream's clock is ahead tells the others that such a key is gone,
				// and holds it until its time.
				soon = soon || there && got.expires >= 0 && got.expires < now+300
			}
			if soon && !all {
				continue
			}
			if c.flushes || !strings.HasPrefix(key, "n:") {
				modelled := false
				for _, seen := range []bool{false, true} {
					model, there := c.makers.fold(effects, now, seen)
					modelled = modelled || there == exists && (!there || model == want)
				}
				equal = equal && modelled
			}
			if strings.HasPrefix(key, "c:") && !c.lossy {
				equal = equal && (held[0][key].content == strconv.FormatInt(c.acked[strconv.Itoa(db)+":"+key], 10) ||
					c.acked[strconv.Itoa(db)+":"+key] == 0)
			}
			if equal {
				continue
			}
			if differ++; differ > 3 {
				continue
			}
			var text strings.Builder
			fmt.Fprintf(&text, "db %d key %s differs\n", db, key)
			for i, z := range c.zones {
				fmt.Fprintf(&text, "  zone %s: %v\n", z.name, held[i][key])
			}
			model, there := c.makers.fold(effects, now, false)
			fmt.Fprintf(&text, "  model: %v %v, acknowledged %d\n", model, there, c.acked[strconv.Itoa(db)+":"+key])
			for _, v := range effects[max(0, len(effects)-30):] {
				fmt.Fprintf(&text, "  %v\n", v)
			}
			for _, z := range c.zones {
				fmt.Fprintf(&text, "  zone %s knows %v, did\n    %s\n", z.name, z.known(db, key),
					strings.Join(z.events[max(0, len(z.events)-60):], "\n    "))
			}
			c.t.Error(text.String())
		}
	}
	if differ > 0 {
		c.t.Fatalf("%d keys differ", differ)
	}
}
