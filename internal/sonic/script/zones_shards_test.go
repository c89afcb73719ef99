package script_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

// Zones whose Redis is used as a primary of a Redis Cluster, with some shards in place of 16384
// slots. Nothing moves: see cluster_test.go.

// A group is the entries of one shard in a message of a clustered zone.
type group struct {
	shard      int
	prev, last string
	entries    []wire.Entry
}

// shards is what a clustered zone has in place of one stream.
type shards struct {
	outs  []string
	again bool             // who ships has lost what it has taken
	sent  map[int]struct { // by shard: what the topic has
		last  string
		known wire.ID
	}
}

const shardCount = 4

func newShards() *shards {
	s := &shards{again: true, sent: make(map[int]struct {
		last  string
		known wire.ID
	})}
	for n := range shardCount {
		s.outs = append(s.outs, script.KeysOf(n).Outbox)
	}
	return s
}

// shardOf returns the shard of a key in all clustered zones.
func shardOf(key string) int { return cluster.Slot([]byte(key)) % shardCount }

// shard returns the stream of a shard.
func (z *zone) shard(n int) string {
	if z.shards == nil {
		return z.out
	}
	return z.shards.outs[n]
}

// hashes returns what the hashes of that name hold, of all shards.
func (z *zone) hashes(name string) map[string]string {
	z.fixture.t.Helper()
	outs := []string{z.out}
	if z.shards != nil {
		outs = z.shards.outs
	}
	all := make(map[string]string)
	for _, out := range outs {
		one, err := z.client.HGetAll(context.Background(), out[:len(out)-3]+name).Result()
		require.NoError(z.fixture.t, err)
		maps.Copy(all, one)
	}
	return all
}

// across calls a function that has keys of several shards.
func (z *zone) across(function string, args ...any) []any {
	z.fixture.t.Helper()
	reply, err := z.client.Do(context.Background(), append([]any{"FCALL", function, 0}, args...)...).Slice()
	require.NoError(z.fixture.t, err, function)
	return reply
}

func (z *zone) openShards() {
	z.fixture.t.Helper()
	args := []any{"FCALL", "sonic_open_primary", 0, z.name, "r", "0-0", len(z.fixture.zones) - 1}
	for _, o := range z.others() {
		args = append(args, o.name)
	}
	require.NoError(z.fixture.t, z.client.Do(context.Background(), append(args, z.fixture.policies...)...).Err())
	outs := make([]any, 0, shardCount)
	for _, out := range z.shards.outs {
		outs = append(outs, out)
	}
	require.Empty(z.fixture.t, z.across("sonic_hold", outs...))
	z.ready = true
}

func (z *zone) recoverShards() {
	z.fixture.t.Helper()
	require.NoError(z.fixture.t, script.Load(context.Background(), z.client))
	_, err := z.callAt(z.shard(1), "sonic_set", "0", "k0", "too early")
	require.ErrorContains(z.fixture.t, err, "SONICNOTREADY")
	require.Equal(z.fixture.t, "0", z.across("sonic_primary")[0])
	z.open("")
	require.Equal(z.fixture.t, "1", z.across("sonic_primary")[0])
	z.shards.again = true
	for _, o := range z.others() { // the position of who applies is an older one
		z.at[o.name] = max(0, z.at[o.name]-z.fixture.r.IntN(4))
	}
}

// marked sets a message's mark. complete says that it has all that there was when it was read.
func (z *zone) marked(m *stored, entries []wire.Entry, complete bool) {
	if n := len(z.topic); n > 0 {
		m.past = z.topic[n-1].past
	}
	if z.shards == nil && len(entries) > 0 {
		m.mark = int64(entries[len(entries)-1].ID.Ms)
	} else if n := len(z.topic); n > 0 {
		m.mark = z.topic[n-1].mark
	}
	if complete {
		m.past = maps.Clone(z.passed)
	}
}

// passes notes what a message of origin, which was applied, says of the zones.
func (z *zone) passes(origin *zone, m stored) {
	z.passed[origin.name] = max(z.passed[origin.name], m.mark)
	if m.past != nil && (z.told[origin.name] == nil || m.mark >= z.passed[origin.name]) {
		z.told[origin.name] = m.past
	}
}

// horizon returns what all zones have passed, as far as this one knows.
func (z *zone) horizon() string {
	lowest := int64(1) << 62
	for _, o := range z.others() {
		lowest = min(lowest, z.passed[o.name])
		for _, other := range o.others() {
			lowest = min(lowest, z.told[o.name][other.name])
		}
	}
	return fmt.Sprintf("%d-0", lowest)
}

// shipShards moves what the streams hold to the topic, with so many calls at most; 0 is for all of
// it, and a message even if there is nothing.
func (z *zone) shipShards(calls int) bool {
	z.fixture.t.Helper()
	t, r := z.fixture.t, z.fixture.r
	past := maps.Clone(z.passed)
	var messages []stored
	shipped := make(map[string]string)
	complete := false
	for n := 0; !complete && (calls == 0 || n < calls); n++ {
		args := []any{"reader"}
		if z.shards.again {
			args = append(args, "again")
		}
		reply := z.across("sonic_take", args...)
		if calls > 0 && r.IntN(10) == 0 { // who ships ends before the broker has it
			z.shards.again = true
			z.fixture.counts["taken and lost"]++
			return true
		}
		z.shards.again = false
		complete = len(reply)%3 == 1
		for i := 0; i+2 < len(reply); i += 3 {
			out, prev := reply[i].(string), reply[i+1].(string)
			entries := z.fixture.entriesOf(xmessages(t, reply[i+2]))
			shipped[out] = entries[len(entries)-1].ID.String()
			for len(entries) > 0 { // in groups of some messages
				taken := 1 + r.IntN(len(entries))
				g := group{slices.Index(z.shards.outs, out), prev, entries[taken-1].ID.String(), entries[:taken]}
				if n := len(messages); n == 0 || r.IntN(2) == 0 || slices.ContainsFunc(messages[n-1].groups, func(o group) bool { return o.shard == g.shard }) {
					messages = append(messages, stored{})
				}
				m := &messages[len(messages)-1]
				m.groups = append(m.groups, g)
				prev, entries = g.last, entries[taken:]
			}
		}
		if complete {
			mark, err := strconv.ParseInt(reply[len(reply)-1].(string), 10, 64)
			require.NoError(t, err)
			if len(messages) == 0 && calls == 0 {
				messages = append(messages, stored{})
			}
			if n := len(messages); n > 0 {
				defer func() {
					last := &z.topic[len(z.topic)-1]
					last.mark, last.past = mark, past
				}()
			}
		}
	}
	for _, m := range messages {
		z.marked(&m, nil, false)
		for _, g := range m.groups {
			sent := z.shards.sent[g.shard]
			for _, e := range g.entries { // some are sent again
				if e.ID.Compare(sent.known) > 0 {
					m.entries = append(m.entries, e)
					sent.known = e.ID
				}
			}
			z.shards.sent[g.shard] = sent
		}
		z.topic = append(z.topic, m)
	}
	if r.IntN(4) > 0 && len(shipped) > 0 { // else it ends between the broker's receipt and this
		var args []any
		for out, id := range shipped {
			args = append(args, out, id)
		}
		require.Empty(t, z.across("sonic_shipped_all", args...))
	}
	return len(shipped) > 0
}

// xmessages reads a reply of XRANGE.
func xmessages(t testing.TB, reply any) (list []redis.XMessage) {
	t.Helper()
	for _, one := range reply.([]any) {
		pair := one.([]any)
		fields := pair[1].([]any)
		m := redis.XMessage{ID: pair[0].(string), Values: map[string]any{}}
		for i := 0; i < len(fields); i += 2 {
			m.Values[fields[i].(string)] = fields[i+1]
		}
		list = append(list, m)
	}
	return list
}

// split returns the effects of entries by the shards of their keys.
func split(t testing.TB, entries []wire.Entry) (groups []group) {
	t.Helper()
	for n := range shardCount {
		g := group{shard: n, prev: "0-0"}
		for _, e := range entries {
			effects, err := wire.Effects(e.Effects)
			require.NoError(t, err)
			packed := ""
			for _, effect := range effects {
				if effect.Values[0] != "_" && shardOf(effect.Values[3]) == n {
					packed += packEffect(effect.Values)
				}
			}
			if packed != "" {
				g.entries = append(g.entries, wire.Entry{ID: e.ID, Effects: packed})
				g.last = e.ID.String()
			}
		}
		if g.last != "" {
			groups = append(groups, g)
		}
	}
	return groups
}

// packEffect packs an effect as MessagePack.
func packEffect(effect []string) string {
	b := binary.BigEndian.AppendUint32([]byte{0xdd}, uint32(len(effect)))
	for i, s := range effect {
		if i == 0 {
			b = append(b, 0xa0+byte(len(s)))
		} else {
			b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(len(s)))
		}
		b = append(b, s...)
	}
	return string(b)
}

// applyGroup hands a group of origin to this zone, and returns the status.
func (z *zone) applyGroup(origin *zone, g group, index int) string {
	z.fixture.t.Helper()
	name, out := origin.name, z.out
	if z.shards != nil {
		out = z.shards.outs[g.shard]
	} else {
		name = fmt.Sprintf("%s/%d", name, g.shard)
	}
	payload, _ := wire.Payload(g.entries)
	cmd, err := z.callAt(out, "sonic_apply", name, origin.epoch, g.prev, g.last, "", index, payload)
	require.NoError(z.fixture.t, err)
	reply, err := cmd.StringSlice()
	require.NoError(z.fixture.t, err)
	require.Len(z.fixture.t, reply, 11)
	for i, what := range []string{"entries", "applied", "lost", "dead", "diverged", "wanted"} {
		n, err := strconv.Atoi(reply[3+i])
		require.NoError(z.fixture.t, err)
		z.fixture.counts[what] += n
	}
	z.fixture.counts[reply[0]]++
	z.event("%s of %s to shard %d: %s, %s", g.last, origin.name, g.shard, reply[0], reply[3:])
	z.ready = reply[10] == "1"
	return reply[0]
}

// applyGroups hands a message to this zone, of which one is clustered, or both are.
func (z *zone) applyGroups(origin *zone, index int) {
	z.fixture.t.Helper()
	m := origin.topic[index]
	groups := m.groups
	if origin.shards == nil {
		groups = split(z.fixture.t, m.entries)
	}
	for _, g := range groups {
		require.Contains(z.fixture.t, []string{"applied", "duplicate"}, z.applyGroup(origin, g, index))
	}
	z.passes(origin, m)
}

// groupsTooEarly leaves one message of a clustered zone out. Each shard has a chain of its own.
func (z *zone) groupsTooEarly(origin *zone, index int) {
	z.fixture.t.Helper()
	for _, g := range origin.topic[index].groups {
		name, out, cursors := origin.name, z.shard(g.shard), "cur"
		if z.shards == nil {
			name, cursors = fmt.Sprintf("%s/%d", name, g.shard), "slots"
		}
		cursor, err := z.client.HGet(context.Background(), out[:len(out)-3]+cursors, name).Result()
		if err != nil {
			cursor = "0-0"
		}
		want := "applied" // what it follows was applied, as a part of what was sent again
		if at := position(z.fixture.t, cursor); at >= position(z.fixture.t, g.last) {
			want = "duplicate"
		} else if at < position(z.fixture.t, g.prev) {
			want = "gap"
		}
		require.Equal(z.fixture.t, want, z.applyGroup(origin, g, index))
	}
}

// commandOf returns a random write, all keys of which are in one shard of a clustered zone, and its
// stream. shard is that shard, or negative for any.
func (c *chaos) commandOf(z *zone, shard int) (args []any, out string) {
	c.t.Helper()
	for z.shards != nil {
		args, at := c.command(z), shard
		fits := true
		for _, arg := range args[1:] {
			key, ok := arg.(string)
			if !ok || !isKey.MatchString(key) {
				continue
			}
			if at < 0 {
				at = shardOf(key)
			}
			fits = fits && at == shardOf(key)
		}
		if fits {
			return args, z.shard(at)
		}
	}
	return c.command(z), z.out
}

var isKey = regexp.MustCompile(`^((hll)?(str|h|s|z|l|x|k)\d+|[cn]:.*)$`)

// Zones of which some are as a Redis Cluster hold the same at the end.
func TestZonesWithClustersConverge(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		names, clustered []string
		like             chaos
		steps            int
	}{
		"one and a cluster":     {[]string{"a", "b"}, []string{"b"}, chaos{}, 1000},
		"two clusters":          {[]string{"a", "b"}, []string{"a", "b"}, chaos{}, 1000},
		"one and two clusters":  {[]string{"a", "b", "c"}, []string{"b", "c"}, chaos{}, 1000},
		"two and a cluster":     {[]string{"a", "b", "c"}, []string{"a"}, chaos{}, 1000},
		"lists":                 {[]string{"a", "b", "c"}, []string{"b", "c"}, chaos{lists: 80}, 700},
		"lists of two clusters": {[]string{"a", "b"}, []string{"a", "b"}, chaos{lists: 80}, 700},
		"expiries":              {[]string{"a", "b", "c"}, []string{"a", "c"}, chaos{expiries: 80}, 700},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row.like.clustered = row.clustered
			row.like.run(t, row.steps, row.names)
		})
	}
}
