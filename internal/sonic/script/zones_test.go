package script_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
	"github.com/aviaryhq/aviary/test/stack"
)

// A stored message is one of a zone's topic, or the parts of one.
type stored struct {
	prev, last string
	parts      [][]byte
	entries    []wire.Entry
	versioned  []versioned // the effects, once they were asked for

	groups []group          // of a clustered zone, in place of prev, last and parts
	mark   int64            // ms: all effects of the zone before it are in this or earlier messages
	past   map[string]int64 // by other zone: what is in later messages was written by who had all before it, in ms
}

// A zone is a Redis with the library, the zone's topic, and where its appliers are in the other
// zones' topics.
type zone struct {
	name    string
	server  *stack.RedisServer
	client  *redis.Client
	out     string
	epoch   int
	ready   bool
	topic   []stored
	at      map[string]int              // origin to the next message
	copies  []string                    // older states of the Redis' folder
	shards  *shards                     // of a clustered zone, else nil
	passed  map[string]int64            // by other zone: the mark of its last message that this zone has applied
	told    map[string]map[string]int64 // by other zone: past of that message
	fixture *fixture
	events  []string // what happened to it, told when a test fails
}

func (z *zone) event(format string, args ...any) {
	z.events = append(z.events, fmt.Sprintf(format, args...))
}

// A fixture is a set of zones that replicate to each other.
type fixture struct {
	t        testing.TB
	r        *rand.Rand
	zones    []*zone
	policies []any // arguments of sonic_open
	mixed    bool  // some zones are clustered

	counts map[string]int // of sonic_apply's replies, and of events
}

func newFixture(t testing.TB, r *rand.Rand, names ...string) *fixture {
	t.Helper()
	return newFixtureOf(t, r, []any{"lww", "n:", "none", "c:", "counter"}, nil, names...)
}

// newFixtureOf is newFixture with other policies, and with other numbers of databases in some zones.
func newFixtureOf(t testing.TB, r *rand.Rand, policies []any, databases map[string]string, names ...string) *fixture {
	t.Helper()
	return newMixedFixture(t, r, policies, databases, nil, names...)
}

// newMixedFixture is newFixtureOf with zones of which some, clustered, are as a Redis Cluster.
func newMixedFixture(
	t testing.TB, r *rand.Rand, policies []any, databases map[string]string, clustered []string, names ...string,
) *fixture {
	t.Helper()
	w := &fixture{t: t, r: r, policies: policies, mixed: len(clustered) > 0, counts: make(map[string]int)}
	for _, name := range names {
		conf := map[string]string{"appendonly": "yes", "appendfsync": "no"}
		if n := databases[name]; n != "" {
			conf["databases"] = n
		}
		server := stack.PrivateRedis(t, stack.Conf(conf))
		z := &zone{
			name: name, server: server, out: script.KeysOf(0).Outbox, at: make(map[string]int), fixture: w,
			passed: make(map[string]int64), told: make(map[string]map[string]int64),
		}
		if slices.Contains(clustered, name) {
			z.shards = newShards()
		}
		z.client = redis.NewClient(&redis.Options{Addr: server.Addr(), MaxRetries: -1, PoolSize: 1})
		t.Cleanup(func() { _ = z.client.Close() })
		w.zones = append(w.zones, z)
	}
	for _, z := range w.zones {
		z.open("0-0")
	}
	return w
}

func (z *zone) others() []*zone {
	return slices.DeleteFunc(slices.Clone(z.fixture.zones), func(o *zone) bool { return o == z })
}

func (z *zone) call(function string, args ...any) (*redis.Cmd, error) {
	z.fixture.t.Helper()
	return z.callAt(z.out, function, args...)
}

// callAt is call for a shard.
func (z *zone) callAt(out, function string, args ...any) (*redis.Cmd, error) {
	z.fixture.t.Helper()
	cmd := z.client.Do(context.Background(), append([]any{"FCALL", function, 1, out}, args...)...)
	return cmd, cmd.Err()
}

// table reads a flat list of name, value, ..
func (z *zone) table(function string, args ...any) map[string]any {
	z.fixture.t.Helper()
	cmd, err := z.call(function, args...)
	require.NoError(z.fixture.t, err)
	list, err := cmd.Slice()
	require.NoError(z.fixture.t, err)
	found := make(map[string]any)
	for i := 0; i < len(list); i += 2 {
		found[list[i].(string)] = list[i+1]
	}
	return found
}

func (z *zone) open(floor string) {
	z.fixture.t.Helper()
	require.NoError(z.fixture.t, script.Load(context.Background(), z.client))
	z.epoch++
	z.event("open %s", floor)
	if z.shards != nil {
		z.openShards()
		return
	}
	args := []any{z.name, z.epoch, floor, "", len(z.fixture.zones) - 1}
	for _, o := range z.others() {
		args = append(args, o.name)
	}
	args = append(args, z.fixture.policies...)
	found := z.table("sonic_open", args...)
	z.ready = found["ready"] == "1"
	if !z.ready {
		z.fixture.counts["opened behind"]++
	}
}

func (z *zone) last() string {
	if len(z.topic) == 0 {
		return "0-0"
	}
	return z.topic[len(z.topic)-1].last
}

// ship moves entries of the stream to the topic, as a shipper does: from behind the topic's last
// position.
func (z *zone) ship(atMost int) bool {
	z.fixture.t.Helper()
	if z.shards != nil {
		return z.shipShards(1 + z.fixture.r.IntN(3))
	}
	list, err := z.client.XRangeN(context.Background(), z.out, "("+z.last(), "+", int64(atMost)).Result()
	require.NoError(z.fixture.t, err)
	entries := z.fixture.entriesOf(list)
	taken := wire.Cut(entries, false)
	if taken == 0 {
		return false
	}
	m := z.fixture.pack(z.last(), entries[:taken])
	z.marked(&m, m.entries, len(list) < atMost && taken == len(entries))
	z.topic = append(z.topic, m)
	if z.fixture.r.IntN(4) > 0 { // else it ends between the broker's receipt and this
		_, err = z.call("sonic_shipped", m.last)
		require.NoError(z.fixture.t, err)
	}
	return true
}

// entriesOf reads what the stream of effects holds.
func (w *fixture) entriesOf(list []redis.XMessage) (entries []wire.Entry) {
	w.t.Helper()
	var joiner wire.Joiner
	for _, m := range list {
		e, ok, err := joiner.Add(m.ID, m.Values)
		require.NoError(w.t, err)
		if ok {
			entries = append(entries, e)
		}
	}
	return entries
}

// pack makes the message of entries that follows prev.
func (w *fixture) pack(prev string, entries []wire.Entry) stored {
	w.t.Helper()
	before, err := wire.ParseID(prev)
	require.NoError(w.t, err)
	p := wire.Packer{Tail: wire.Tail{Last: before, Position: -1}}
	messages, ends, err := p.Pack(entries)
	require.NoError(w.t, err)
	m := stored{prev: prev, last: ends.Last.String()}
	for i := range messages {
		m.parts = append(m.parts, messages[i].Payload)
	}
	m.entries, err = wire.Entries(slices.Concat(m.parts...))
	require.NoError(w.t, err)
	return m
}

// apply hands a message to this zone, and returns the status, and the message that its cursor is
// at.
func (z *zone) apply(origin *zone, m stored, index int) (status string, at int) {
	z.fixture.t.Helper()
	var reply []string
	for i, payload := range m.parts {
		part := ""
		if len(m.parts) > 1 {
			part = fmt.Sprintf("%d/%d", i+1, len(m.parts))
		}
		cmd, err := z.call("sonic_apply", origin.name, origin.epoch, m.prev, m.last, part, index, payload)
		require.NoError(z.fixture.t, err)
		reply, err = cmd.StringSlice()
		require.NoError(z.fixture.t, err)
		if reply[0] != "part" {
			break
		}
	}
	require.Len(z.fixture.t, reply, 11)
	at = -1
	if reply[2] != "" {
		var err error
		at, err = strconv.Atoi(reply[2])
		require.NoError(z.fixture.t, err)
	}
	for i, what := range []string{"entries", "applied", "lost", "dead", "diverged", "wanted"} {
		n, err := strconv.Atoi(reply[3+i])
		require.NoError(z.fixture.t, err)
		z.fixture.counts[what] += n
	}
	z.fixture.counts[reply[0]]++
	z.event("%s of %s: %s, %s", m.last, origin.name, reply[0], reply[3:])
	z.ready = reply[10] == "1"
	return reply[0], at
}

// deliver hands the next message of origin to this zone.
func (z *zone) deliver(origin *zone) bool {
	z.fixture.t.Helper()
	index := z.at[origin.name]
	if index >= len(origin.topic) {
		return false
	}
	if z.shards != nil || origin.shards != nil {
		z.applyGroups(origin, index)
		z.at[origin.name] = index + 1
		return true
	}
	status, at := z.apply(origin, origin.topic[index], index)
	if status == "gap" {
		index = at
	}
	require.NotEqual(z.fixture.t, "part", status)
	z.passes(origin, origin.topic[index])
	z.at[origin.name] = index + 1
	return true
}

// deliverAgain hands over what was delivered before, or an overlap of it and the next messages.
func (z *zone) deliverAgain(origin *zone) {
	z.fixture.t.Helper()
	next := z.at[origin.name]
	if next == 0 {
		return
	}
	from := z.fixture.r.IntN(next)
	if z.shards != nil || origin.shards != nil {
		for index := from; index < min(next, from+3); index++ {
			z.applyGroups(origin, index)
		}
		return
	}
	if next == len(origin.topic) || z.fixture.r.IntN(2) == 0 {
		m := origin.topic[from]
		status, _ := z.apply(origin, m, from)
		require.Equal(z.fixture.t, "duplicate", status)
		return
	}
	from = max(from, next-3)
	var entries []wire.Entry
	for _, part := range origin.topic[from : next+1] {
		entries = append(entries, part.entries...)
	}
	if wire.Cut(entries, false) < len(entries) || len(entries) == 0 {
		return // too many for one
	}
	m := z.fixture.pack(origin.topic[from].prev, entries)
	m.last = origin.topic[next].last // an end of a transaction has no effects
	status, at := z.apply(origin, m, next)
	if status == "gap" {
		z.at[origin.name] = at + 1
		return
	}
	require.Equal(z.fixture.t, "applied", status)
	z.fixture.counts["overlaps"]++
	z.at[origin.name] = next + 1
}

// deliverTooEarly leaves one message out.
func (z *zone) deliverTooEarly(origin *zone) {
	z.fixture.t.Helper()
	next := z.at[origin.name] + 1
	if next >= len(origin.topic) || z.shards != nil && origin.shards == nil {
		return
	}
	if origin.shards != nil {
		z.groupsTooEarly(origin, next)
		return
	}
	status, at := z.apply(origin, origin.topic[next], next)
	require.Contains(z.fixture.t, []string{"gap", "duplicate"}, status)
	if status == "gap" {
		require.LessOrEqual(z.fixture.t, at, next-2)
	}
}

func (z *zone) beat() {
	z.fixture.t.Helper()
	if z.shards != nil {
		z.shipShards(0)
		return
	}
	_, err := z.call("sonic_beat")
	if err != redis.Nil { //nolint:errorlint // effects are dropped
		require.NoError(z.fixture.t, err)
	}
}

// prune makes steps through the versions; all of them when steps is 0.
func (z *zone) prune(steps int) (left int) {
	z.fixture.t.Helper()
	if z.shards != nil {
		for _, out := range z.shards.outs {
			left += z.pruneShard(out, steps, z.horizon())
		}
		return left
	}
	if z.fixture.mixed {
		return z.pruneShard(z.out, steps, z.horizon())
	}
	return z.pruneShard(z.out, steps)
}

func (z *zone) pruneShard(out string, steps int, horizon ...any) (left int) {
	z.fixture.t.Helper()
	cursor := "0"
	for n := 0; steps == 0 || n < steps; n++ {
		cmd, err := z.callAt(out, "sonic_prune", append([]any{cursor, 20}, horizon...)...)
		require.NoError(z.fixture.t, err)
		reply, err := cmd.StringSlice()
		require.NoError(z.fixture.t, err)
		cursor = reply[0]
		left, err = strconv.Atoi(reply[3])
		z.event("prune %s", reply)
		require.NoError(z.fixture.t, err)
		if cursor == "0" {
			break
		}
	}
	return left
}

func (z *zone) appendFolder() string { return filepath.Join(z.server.Dir(), "appendonlydir") }

// keepCopy copies the Redis' file as it is now.
func (z *zone) keepCopy() {
	z.fixture.t.Helper()
	dir := filepath.Join(z.fixture.t.TempDir(), fmt.Sprintf("copy-%d", len(z.copies)))
	require.NoError(z.fixture.t, os.CopyFS(dir, os.DirFS(z.appendFolder())))
	z.copies = append(z.copies, dir)
}

// restart kills the Redis and starts it again; with an older copy of its data, if old.
func (z *zone) restart(old bool) {
	z.fixture.t.Helper()
	require.NoError(z.fixture.t, z.server.Kill())
	if old && len(z.copies) > 0 {
		i := z.fixture.r.IntN(len(z.copies))
		require.NoError(z.fixture.t, os.RemoveAll(z.appendFolder()))
		require.NoError(z.fixture.t, os.CopyFS(z.appendFolder(), os.DirFS(z.copies[i])))
		z.copies = z.copies[:i+1] // later ones are of a history that was not
		z.fixture.counts["older Redis"]++
	}
	z.event("restart %v", old)
	require.NoError(z.fixture.t, z.server.Start(context.Background()))
	if z.shards != nil {
		z.recoverShards()
		return
	}
	at := maps.Clone(z.at)
	z.recover()
	for _, o := range z.others() {
		if o.shards != nil { // who applies its messages has a position elsewhere, which may be an older one
			z.at[o.name] = max(0, at[o.name]-z.fixture.r.IntN(4))
		}
	}
}

// recover does what a shipper does that opens: it applies what this Redis has lost and the topic
// has.
func (z *zone) recover() {
	z.fixture.t.Helper()
	t := z.fixture.t
	require.NoError(t, script.Load(context.Background(), z.client))
	_, err := z.call("sonic_set", "0", "k0", "too early")
	require.ErrorContains(t, err, "SONICNOTREADY")
	found := z.table("sonic_state")
	require.Equal(t, "0", found["opened"])
	last := position(t, found["last"].(string))
	for i, m := range z.topic {
		if position(t, m.last) <= last {
			continue
		}
		status, _ := z.apply(z, m, i)
		require.Equal(t, "applied", status)
		z.fixture.counts["recovered"]++
	}
	z.open(z.last())
	cursors := found["cursors"].([]any)
	clear(z.at)
	for i := 0; i < len(cursors); i += 4 {
		at, err := strconv.Atoi(cursors[i+2].(string))
		require.NoError(t, err)
		z.at[cursors[i].(string)] = at + 1
	}
}

func position(t testing.TB, id string) int64 {
	t.Helper()
	parsed, err := wire.ParseID(id)
	require.NoError(t, err)
	p, err := parsed.Position()
	require.NoError(t, err)
	return p
}

// drain ships and delivers until nothing is left, wants and their answers included.
func (w *fixture) drain() {
	w.t.Helper()
	for moved := true; moved; {
		moved = false
		for _, z := range w.zones {
			for z.ship(1000) {
				moved = true
			}
			for _, o := range z.others() {
				for z.deliver(o) {
					moved = true
				}
			}
		}
	}
}

// A value is what a key holds, in a canonical form.
type value struct {
	kind    string
	content string
	expires int64 // ms; -1 never
}

func (v value) String() string { return fmt.Sprintf("%s %s expires %d", v.kind, v.content, v.expires) }

// data reads all keys of a database but Sonic's own.
func (z *zone) data(db int) map[string]value {
	z.fixture.t.Helper()
	t, ctx := z.fixture.t, context.Background()
	c := redis.NewClient(&redis.Options{Addr: z.server.Addr(), DB: db, MaxRetries: -1})
	defer c.Close()
	keys, err := c.Keys(ctx, "*").Result()
	require.NoError(t, err)
	keys = slices.DeleteFunc(keys, isStateKey)
	pipe := c.Pipeline()
	kinds := make([]*redis.StatusCmd, len(keys))
	for i, key := range keys {
		kinds[i] = pipe.Type(ctx, key)
	}
	_, err = pipe.Exec(ctx)
	require.NoError(t, err)
	contents, expires := make([]func(testing.TB) string, len(keys)), make([]*redis.Cmd, len(keys))
	for i, key := range keys {
		contents[i] = contentOf(ctx, pipe, kinds[i].Val(), key)
		expires[i] = pipe.Do(ctx, "PEXPIRETIME", key)
	}
	_, _ = pipe.Exec(ctx) // each command has its own error
	all := make(map[string]value)
	for i, key := range keys {
		v := value{kind: kinds[i].Val(), content: contents[i](t)}
		v.expires, err = expires[i].Int64()
		require.NoError(t, err)
		if v.kind != "none" && v.expires != -2 {
			all[key] = v
		}
	}
	return all
}

// contentOf asks for what a key holds, and returns what reads the reply once the pipeline has run.
func contentOf(ctx context.Context, c redis.Cmdable, kind, key string) func(testing.TB) string {
	sorted := func(list []string) string {
		slices.Sort(list)
		return strings.Join(list, " ")
	}
	switch kind {
	case "string":
		read := c.Get(ctx, key)
		return func(t testing.TB) string {
			t.Helper()
			s, err := read.Result()
			if err != redis.Nil { //nolint:errorlint // it expired just now
				require.NoError(t, err)
			}
			return s
		}
	case "hash":
		read := c.HGetAll(ctx, key)
		return func(t testing.TB) string {
			t.Helper()
			m, err := read.Result()
			require.NoError(t, err)
			var list []string
			for f, v := range m {
				list = append(list, f+"="+v)
			}
			return sorted(list)
		}
	case "set":
		read := c.SMembers(ctx, key)
		return func(t testing.TB) string {
			t.Helper()
			list, err := read.Result()
			require.NoError(t, err)
			return sorted(list)
		}
	case "zset":
		read := c.ZRangeWithScores(ctx, key, 0, -1)
		return func(t testing.TB) string {
			t.Helper()
			list, err := read.Result()
			require.NoError(t, err)
			var pairs []string
			for _, z := range list {
				pairs = append(pairs, fmt.Sprintf("%v=%v", z.Member, z.Score))
			}
			return sorted(pairs)
		}
	case "list":
		read := c.LRange(ctx, key, 0, -1)
		return func(t testing.TB) string {
			t.Helper()
			list, err := read.Result()
			require.NoError(t, err)
			return strings.Join(list, " ")
		}
	case "stream":
		read, about := c.XRange(ctx, key, "-", "+"), c.XInfoStream(ctx, key)
		return func(t testing.TB) string {
			t.Helper()
			list, err := read.Result()
			require.NoError(t, err)
			info, err := about.Result()
			if err != nil && strings.Contains(err.Error(), "no such key") { // it expired just now
				return ""
			}
			require.NoError(t, err)
			return fmt.Sprint(list, " ", info.LastGeneratedID, " ", info.MaxDeletedEntryID, " ", info.EntriesAdded)
		}
	default:
		return func(testing.TB) string { return "" }
	}
}
