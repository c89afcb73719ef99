package script_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Every pair of writes to one key, and many longer rows of them, in all zones, meet in many orders
// of arrival: with an expiry that passes in between, with versions that are pruned in between, with
// a clock that is ahead. Zones hold the same at the end, and what the model says.
//
// A row of writes has a key of its own, so that thousands of rows take one schedule: who writes,
// who hears of it then, when the expiry passes.
func TestEveryRowOfWritesConverges(t *testing.T) {
	t.Parallel()
	p := fromEnvironment(t, 16) // schedules
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}} {
		t.Run(strconv.Itoa(len(names)), func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, rand.New(rand.NewPCG(p.seed, uint64(len(names)))), names...)
			g := &grid{fixture: w, makers: newMakers(t)}
			for n := range p.steps {
				g.run(n, 2+n%3)
			}
			t.Log(w.counts)
		})
	}
}

// The same rows while zones drop effects, now and then, and ship later what these have changed:
// zones hold the same at the end.
func TestEveryRowOfDroppedWritesConverges(t *testing.T) {
	t.Parallel()
	p := fromEnvironment(t, 10) // schedules
	for _, names := range [][]string{{"a", "b"}, {"a", "b", "c"}} {
		t.Run(strconv.Itoa(len(names)), func(t *testing.T) {
			t.Parallel()
			w := newFixture(t, rand.New(rand.NewPCG(p.seed, uint64(len(names)))), names...)
			g := &grid{fixture: w, makers: newMakers(t), drops: true}
			for n := range p.steps {
				g.run(n, 2+n%3)
			}
			t.Log(w.counts)
		})
	}
}

// rowWrite is a write to a key: commands with %k for the key, %v for a value of its own, %s for a
// time soon, %l for one far away. Some need another key before, "<key>.tmp".
var rowWrites = []string{
	"set %k %v", "set %k %v PXAT %s", "set %k %v PXAT %l", "append %k %v",
	"del %k",
	"hset %k f %v", "hset %k g %v", "hset %k f %v g %v", "hdel %k f", "hdel %k f g",
	"sadd %k f", "sadd %k g", "srem %k f",
	"zadd %k 1 f", "zadd %k 2 g", "zrem %k f g",
	"rpush %k %v", "lpop %k",
	"pexpireat %k %s", "pexpireat %k %l", "persist %k",
	"hset %k.tmp f %v h %v;rename %k.tmp %k", "hset %k.tmp f %v h %v;pexpireat %k.tmp %s;rename %k.tmp %k",
	"sadd %k.tmp f h;pexpireat %k.tmp %l;rename %k.tmp %k",
}

// grid runs rows of writes by schedules.
type grid struct {
	*fixture
	makers *makers
	rows   int
	begun  []int // of each zone, how long its topic was before
	drops  bool  // zones drop effects
}

const mostRows = 1200

// rowsOf returns rows of n writes: all there are, or some.
func (g *grid) rowsOf(n int) [][]int {
	all := 1
	for range n {
		all *= len(rowWrites)
	}
	var rows [][]int
	for i := range min(all, mostRows) {
		if all > mostRows {
			i = g.r.IntN(all)
		}
		row := make([]int, n)
		for at := range row {
			row[at], i = i%len(rowWrites), i/len(rowWrites)
		}
		rows = append(rows, row)
	}
	return rows
}

// run runs all rows of length writes by one schedule.
func (g *grid) run(number, length int) {
	t := g.t
	t.Helper()
	g.begun = g.begun[:0]
	for _, z := range g.zones {
		g.begun = append(g.begun, len(z.topic))
		z.events = nil
	}
	rows := g.rowsOf(length)
	soon := time.Now().Add(time.Duration(150+50*length) * time.Millisecond)
	far := time.Now().Add(time.Hour).UnixMilli()
	passes := g.r.IntN(length + 2) // behind the last write, too, and never
	var schedule []string
	if g.r.IntN(4) == 0 {
		z := g.zones[g.r.IntN(len(g.zones))]
		ahead := g.r.Int64N(300)
		z.open(fmt.Sprintf("%d-0", time.Now().UnixMilli()+ahead))
		schedule = append(schedule, fmt.Sprintf("the clock of %s is ahead by %d", z.name, ahead))
	}
	for at := range length {
		if at == passes {
			sleepPast(soon)
			schedule = append(schedule, "the expiry passes")
		}
		z := g.zones[g.r.IntN(len(g.zones))]
		schedule = append(schedule, g.drop()...)
		schedule = append(schedule, z.name+" writes")
		g.write(z, rows, at, number, soon.UnixMilli(), far)
		schedule = append(schedule, g.hear(at == 0)...)
	}
	if passes == length {
		sleepPast(soon)
		schedule = append(schedule, "the expiry passes")
	}
	if g.drops {
		for _, z := range g.zones {
			z.skip(false)
			z.resend()
		}
	}
	g.drain()
	time.Sleep(time.Until(soon.Add(350 * time.Millisecond))) // clocks of streams are ahead by less
	g.drain()
	g.compare(number, rows, schedule, soon.UnixMilli(), far)
	g.forget()
}

// drop has some zones begin to drop effects, or end that; then some ship at once what was dropped.
func (g *grid) drop() (did []string) {
	g.t.Helper()
	if !g.drops {
		return nil
	}
	for _, z := range g.zones {
		switch g.r.IntN(5) {
		case 0, 1:
			z.skip(true)
			did = append(did, z.name+" drops")
		case 2:
			z.skip(false)
			did = append(did, z.name+" drops nothing")
		case 3:
			z.skip(false)
			z.resend()
			did = append(did, z.name+" ships what was dropped")
		}
	}
	return did
}

// write sends the writes at place at of all rows to a zone.
func (g *grid) write(z *zone, rows [][]int, at, number int, soon, far int64) {
	g.t.Helper()
	pipe := z.client.Pipeline()
	for i, row := range rows {
		words := strings.NewReplacer("%k", rowKey(number, i), "%v", fmt.Sprintf("v%d", at), "%s", strconv.FormatInt(soon, 10), "%l", strconv.FormatInt(far, 10))
		for command := range strings.SplitSeq(words.Replace(rowWrites[row[at]]), ";") {
			parts := strings.Fields(command)
			args := []any{"FCALL", "sonic_" + parts[0], 1, z.out, "0"}
			for _, word := range parts[1:] {
				args = append(args, word)
			}
			pipe.Do(context.Background(), args...)
		}
	}
	cmds, _ := pipe.Exec(context.Background())
	for _, cmd := range cmds {
		err := cmd.Err()
		if err == nil || err == redis.Nil { //nolint:errorlint // Redis' own
			continue
		}
		if text := err.Error(); !strings.HasPrefix(text, "WRONGTYPE") && !strings.HasPrefix(text, "ERR no such key") {
			g.t.Fatalf("%v: %v", cmd.Args(), err)
		}
	}
}

func rowKey(number, i int) string { return fmt.Sprintf("row:%d:%d", number, i) }

// hear has some zones hear of others, in some order, and some prune.
func (g *grid) hear(first bool) (did []string) {
	g.t.Helper()
	type way struct{ to, from *zone }
	var ways []way
	for _, z := range g.zones {
		for _, o := range z.others() {
			ways = append(ways, way{z, o})
		}
	}
	g.r.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	prune := g.r.IntN(3) == 0
	if !prune {
		ways = ways[:g.r.IntN(len(ways)+1)]
	}
	if prune && first { // all know the first write, and forget it
		g.drain()
	}
	for range 2 {
		for _, w := range ways {
			if prune {
				w.from.beat()
			}
			for w.from.ship(1000) {
			}
			for w.to.deliver(w.from) {
			}
			did = append(did, w.to.name+" hears of "+w.from.name)
		}
		if !prune {
			break
		}
	}
	if prune {
		for _, z := range g.zones {
			z.prune(0)
		}
		did = append(did, "all prune")
	}
	return did
}

// compare compares what zones hold of all rows, and the model.
func (g *grid) compare(number int, rows [][]int, schedule []string, soon, far int64) {
	g.t.Helper()
	histories := make(map[string][]versioned)
	for at, z := range g.zones {
		for i := g.begun[at]; i < len(z.topic); i++ {
			for _, v := range z.effects(i) {
				histories[v.effect[3]] = append(histories[v.effect[3]], v)
			}
		}
	}
	var held []map[string]value
	for _, z := range g.zones {
		held = append(held, z.data(0))
	}
	now := time.Now().UnixMilli()
	differ := 0
	for i, row := range rows {
		key := rowKey(number, i)
		effects := histories[key]
		slices.SortStableFunc(effects, versioned.compare)
		want, exists := held[0][key]
		equal := true
		for _, data := range held {
			got, there := data[key]
			equal = equal && there == exists && got == want
		}
		modelled := g.drops // the model does not know what was dropped
		for _, seen := range []bool{false, true} {
			if g.drops {
				break
			}
			model, there := g.makers.fold(effects, now, seen)
			if model.kind == "dump" && exists {
				model.kind, model.content = want.kind, want.content
			}
			modelled = modelled || there == exists && (!there || model == want)
		}
		if equal && modelled {
			continue
		}
		if differ++; differ > 3 {
			continue
		}
		var text strings.Builder
		fmt.Fprintf(&text, "key %s: zones are equal: %v, as the model: %v; soon %d, far %d\n  %s\n", key, equal, modelled, soon, far, strings.Join(schedule, "; "))
		for _, write := range row {
			fmt.Fprintf(&text, "  %s\n", rowWrites[write])
		}
		for at, z := range g.zones {
			fmt.Fprintf(&text, "  zone %s: %v, knows %v\n", z.name, held[at][key], z.known(0, key))
		}
		if !g.drops {
			model, there := g.makers.fold(effects, now, false)
			fmt.Fprintf(&text, "  model: %v %v\n", model, there)
		}
		for _, v := range effects {
			fmt.Fprintf(&text, "  %v\n", v)
		}
		g.t.Error(text.String())
	}
	g.rows += len(rows)
	if differ > 0 {
		g.t.Fatalf("%d of %d rows differ; %s", differ, len(rows), strings.Join(schedule, "; "))
	}
}

// forget empties all zones for the next schedule.
func (g *grid) forget() {
	g.t.Helper()
	ctx := context.Background()
	for range 2 {
		for _, z := range g.zones {
			z.beat()
		}
		g.drain()
	}
	for _, z := range g.zones {
		z.prune(0) // statements about an expiry that is to come stay
		wants, err := z.client.HGetAll(ctx, "{sonic:0}requests").Result()
		require.NoError(g.t, err)
		require.Empty(g.t, wants, "wants that nobody answered")
		keys, err := z.client.Keys(ctx, "row:*").Result()
		require.NoError(g.t, err)
		for some := range slices.Chunk(keys, 1000) {
			require.NoError(g.t, z.client.Unlink(ctx, some...).Err())
		}
	}
}
