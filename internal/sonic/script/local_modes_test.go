package script_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/stack"
)

// newSonic returns a server with an open library, and a connection to it that shows replies.
func newSonic(t *testing.T, others []string, policies ...string) (*redis.Conn, *rawConn) {
	t.Helper()
	srv := stack.PrivateRedis(t)
	c := srv.Client(t).Conn()
	t.Cleanup(func() { _ = c.Close() })
	open(t.Context(), t, c, others, policies...)
	return c, dial(t, srv, 2)
}

// text prints effects, one per line, as rows do.
func text(all [][]effect) string {
	var lines []string
	for _, entry := range all {
		for _, e := range entry {
			lines = append(lines, strings.Join(e, " "))
		}
	}
	return strings.Join(lines, "\n")
}

// Counters ship what was added. What cannot be said as an addition is refused and changes nothing.
func TestCounters(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, w := newSonic(t, []string{"b"}, "lww", "c:", "counter", "c:x", "none")
	for _, row := range []struct{ command, reply, effects string }{
		{"INCR c:n", ":1", "I c 0 c:n 1"},
		{"DECR c:n", ":0", "I c 0 c:n -1"},
		{"INCRBY c:n 7", ":7", "I c 0 c:n 7"},
		{"DECRBY c:n -3", ":10", "I c 0 c:n 3"},
		{"DECRBY c:n 4", ":6", "I c 0 c:n -4"},
		{"DECRBY c:n 0", ":6", "I c 0 c:n 0"},
		{"INCRBY c:n 9007199254740993", "+9007199254740999", "I c 0 c:n 9007199254740993"},
		{"SET c:n 1", "-SONICREFUSED", ""}, // the difference is not exact
		{"SET c:m 5", "+OK", "I c 0 c:m 5"},
		{"SET c:m 3", "+OK", "I c 0 c:m -2"},
		{"SET c:m 3", "+OK", ""},
		{"SET c:m 9 GET", "$1\r\n3", "I c 0 c:m 6"},
		{"SET c:m 1 NX", "$-1", ""},
		{"SET c:m 1 NX GET", "$1\r\n9", ""},
		{"SET c:m 8 XX", "+OK", "I c 0 c:m -1"},
		{"SET c:o 8 XX", "$-1", ""},
		{"SET c:o 0", "+OK", "I c 0 c:o 0"},
		{"SET c:m 07", "-SONICREFUSED", ""},
		{"SET c:m 1.5", "-SONICREFUSED", ""},
		{"SET c:m 7 EX 10", "-SONICREFUSED", ""},
		{"HINCRBY c:h f 7", ":7", "i c 0 c:h f 7"},
		{"ZINCRBY c:z 1.5 m", "$3\r\n1.5", "j c 0 c:z m 1.5"},
		{"INCR c:h", "-WRONGTYPE", ""},
		{"SET c:x v", "+OK", "S n 0 c:x v "},
		{"INCR plain", ":1", "S l 0 plain 1 "},
		{"DEL plain c:n", "-SONICREFUSED", ""},
		{"MSET plain 2 c:n 1", "-SONICREFUSED", ""},
		{"RENAME c:n plain", "-SONICREFUSED", ""},
		{"RENAME plain c:n", "-SONICREFUSED", ""},
		{"SUNIONSTORE c:n plain", "-SONICREFUSED", ""},
		{"SORT plain STORE c:n", "-SONICREFUSED", ""},
		{"COPY plain c:n", "-SONICREFUSED", ""},
		{"ZMPOP 1 c:z MIN", "-SONICREFUSED", ""},
		{"BLPOP plain c:n 0", "-SONICREFUSED", ""},
	} {
		before := holdings(ctx, t, c, true)
		reply := w.do(function(callMode{}, words(row.command))...)
		if !strings.HasPrefix(reply, row.reply) {
			t.Errorf("%s: the reply is %q, want %q", row.command, reply, row.reply)
		}
		if strings.HasPrefix(row.reply, "-") && !slices.Equal(before, holdings(ctx, t, c, true)) {
			t.Errorf("%s was refused and changed something", row.command)
		}
		if got := text(entries(ctx, t, c)); got != row.effects {
			t.Errorf("%s: effects are %q, want %q", row.command, got, row.effects)
		}
	}
	for _, command := range []string{
		"SETEX c:n 9 1", "PSETEX c:n 9 1", "SETNX c:n 1", "GETSET c:n 1", "GETDEL c:n", "GETEX c:n", "MSETNX c:n 1", "INCRBYFLOAT c:n 1",
		"APPEND c:n 1", "SETRANGE c:n 0 1", "SETBIT c:n 0 1", "BITFIELD c:n SET u8 0 1", "BITOP NOT c:n plain", "PFADD c:n a", "PFMERGE c:n",
		"UNLINK c:n", "EXPIRE c:n 9", "PEXPIRE c:n 9", "EXPIREAT c:n 9", "PEXPIREAT c:n 9", "PERSIST c:n", "RENAMENX c:n d", "MOVE c:n 3",
		"RESTORE c:n 0 x", "HSET c:h f 1", "HMSET c:h f 1", "HSETNX c:h f 1", "HINCRBYFLOAT c:h f 1", "HDEL c:h f", "SADD c:s a", "SREM c:s a",
		"SMOVE plain c:s a", "SPOP c:s", "SINTERSTORE c:s d", "SDIFFSTORE c:s d", "ZADD c:z 1 m", "ZREM c:z m", "ZREMRANGEBYSCORE c:z 0 9",
		"ZREMRANGEBYRANK c:z 0 9", "ZREMRANGEBYLEX c:z - +", "ZPOPMIN c:z", "ZPOPMAX c:z", "ZUNIONSTORE c:z 1 d", "ZINTERSTORE c:z 1 d",
		"ZDIFFSTORE c:z 1 d", "ZRANGESTORE c:z d 0 1", "LPUSH c:l a", "RPUSH c:l a", "LPUSHX c:l a", "RPUSHX c:l a", "LPOP c:l", "RPOP c:l",
		"LREM c:l 0 a", "LSET c:l 0 a", "LINSERT c:l BEFORE a b", "LTRIM c:l 0 1", "LMOVE plain c:l LEFT LEFT", "RPOPLPUSH c:l d",
		"LMPOP 1 c:l LEFT", "BRPOP c:l 0", "BLMPOP 0 1 c:l LEFT", "BLMOVE c:l d LEFT LEFT 0", "BRPOPLPUSH c:l d 0", "BZPOPMIN c:z 0",
		"BZPOPMAX c:z 0", "BZMPOP 0 1 c:z MIN", "GEOADD c:z 1 1 m", "GEORADIUS plain 1 1 1 km STORE c:z", "GEORADIUSBYMEMBER plain m 1 km STORE c:z",
		"GEOSEARCHSTORE c:z d FROMMEMBER m BYRADIUS 1 km", "XADD c:x2 * f v", "XDEL c:t 1-1", "XTRIM c:t MAXLEN 1", "XSETID c:t 1-1",
	} {
		command = strings.Replace(command, "c:x2", "c:t", 1)
		if reply := w.do(function(callMode{}, words(command))...); !strings.HasPrefix(reply, "-SONICREFUSED "+words(command)[0]) {
			t.Errorf("%s: the reply is %q", command, reply)
		}
	}
	if all := entries(ctx, t, c); len(all) != 0 {
		t.Errorf("refused commands appended %q", all)
	}
}

// A transaction's entries have its id, and one without effects closes it. One that changed nothing
// leaves nothing.
func TestTransactions(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, w := newSonic(t, []string{"b"}, "lww")
	out := script.KeysOf(0).Outbox
	mode := callMode{DB: 3, Tx: "ab12"}
	closing := func() string { return w.do(function(mode, []string{"TX"})...) }

	w.do("MULTI")
	w.do(function(mode, words("SET k v"))...)
	w.do(function(mode, words("DEL missing"))...)
	w.do(function(mode, words("INCR n"))...)
	closing()
	w.do("EXEC")
	var got []string
	for _, m := range c.XRange(ctx, out, "-", "+").Val() {
		e, err := effectsOf(m.Values["e"].(string))
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprint(m.Values["t"], " ", text([][]effect{e})))
	}
	if want := []string{"ab12 S l 3 k v ", "ab12 S l 3 n 1 ", "ab12 "}; !slices.Equal(got, want) {
		t.Errorf("entries are %q, want %q", got, want)
	}
	entries(ctx, t, c)

	w.do(function(mode, words("DEL missing"))...)
	if reply := closing(); reply != "$-1\r\n" {
		t.Errorf("the end of nothing replies %q", reply)
	}
	mode.Published = true
	if reply := closing(); reply != "*1\r\n$-1\r\n" {
		t.Errorf("the end of nothing replies %q", reply)
	}
	if all := entries(ctx, t, c); len(all) != 0 {
		t.Errorf("a transaction without effects appended %q", all)
	}
}

// With p a reply carries the id of the entry, nil when there is none. Errors stay as they are.
func TestPublishedReplies(t *testing.T) {
	t.Parallel()
	c, w := newSonic(t, []string{"b"}, "lww")
	mode := callMode{Published: true}
	reply := w.do(function(mode, words("SET k v"))...)
	id := c.XRange(t.Context(), script.KeysOf(0).Outbox, "-", "+").Val()[0].ID
	if want := fmt.Sprintf("*2\r\n$%d\r\n%s\r\n+OK\r\n", len(id), id); reply != want {
		t.Errorf("the reply is %q, want %q", reply, want)
	}
	for command, want := range map[string]string{
		"SET k v NX": "*2\r\n$-1\r\n$-1\r\n",
		"SADD k a":   "-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
		"SET k":      "-ERR wrong number of arguments for 'set' command\r\n",
		"LPOP":       "-ERR wrong number of arguments for 'lpop' command\r\n",
	} {
		if reply := w.do(function(mode, words(command))...); reply != want {
			t.Errorf("%s: the reply is %q, want %q", command, reply, want)
		}
	}
}

// A single zone gets the replies, and nothing is kept. Before the library is open writes are
// refused.
func TestSingleZone(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv, bare := stack.PrivateRedis(t), stack.PrivateRedis(t)
	c := srv.Client(t).Conn()
	t.Cleanup(func() { _ = c.Close() })
	if err := script.Load(ctx, c); err != nil {
		t.Fatal(err)
	}
	w, b := dial(t, srv, 2), dial(t, bare, 2)
	if reply := w.do(function(callMode{}, words("SET k v"))...); !strings.HasPrefix(reply, "-SONICNOTREADY") {
		t.Errorf("the reply before sonic_open is %q", reply)
	}
	open(ctx, t, c, nil, "lww")
	for _, row := range rows {
		if row.any {
			continue
		}
		w.do("FLUSHDB") // the functions work in db 0, where it erases no state that this test needs
		b.do("FLUSHDB")
		for _, command := range commands(row.before) {
			b.do(command...)
			w.do(command...)
		}
		command := words(row.command)
		got, want := translated(command, 2, w.do(function(callMode{}, command)...)), b.do(command...)
		if !sameReply(command[0], got, want) {
			t.Errorf("%s: the reply is %q, bare Redis' is %q", row.command, got, want)
		}
		if c.Exists(ctx, script.KeysOf(0).Outbox, script.KeysOf(0).Versions).Val() != 0 {
			t.Fatalf("%s: a single zone keeps state", row.command)
		}
	}
}

// Commands of more arguments than Lua's unpack takes work when they can be cut, and are refused
// when not.
func TestManyArguments(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	n := 6001 // no multiple of a slice
	r := newRig(ctx, t, "lww")
	bare, sonic := dial(t, r.bare, 2), dial(t, r.sonic, 2)
	many := func(first []string, group func(i int) []string) []string {
		command := first
		for i := range n {
			command = append(command, group(i)...)
		}
		return command
	}
	one := func(i int) []string { return []string{"e" + strconv.Itoa(i)} }
	two := func(i int) []string { return []string{strconv.Itoa(i), "e" + strconv.Itoa(i)} }
	fields := func(i int) []string { return []string{"e" + strconv.Itoa(i), strconv.Itoa(i)} }
	elements := [][]string{
		many([]string{"HSET", "h"}, fields), many([]string{"HMSET", "h"}, fields), many([]string{"HDEL", "h"}, one), append(many([]string{"HSET", "h"}, fields), "odd"),
		many([]string{"SADD", "s"}, one), many([]string{"SREM", "s"}, func(i int) []string { return one(i * 2) }),
		many([]string{"ZADD", "z"}, two), many([]string{"ZADD", "z", "XX", "CH"}, func(i int) []string { return []string{"7", "e" + strconv.Itoa(i*2)} }),
		append(many([]string{"ZADD", "y"}, two), "x", "bad"), many([]string{"ZADD", "z", "INCR"}, two), many([]string{"ZREM", "z"}, one),
		many([]string{"GEOADD", "g"}, func(i int) []string { return []string{strconv.Itoa(i % 100), "1", "e" + strconv.Itoa(i)} }),
		append(many([]string{"GEOADD", "f"}, func(i int) []string { return []string{"1", "1", "e" + strconv.Itoa(i)} }), "1", "200", "bad"),
		many([]string{"LPUSH", "l"}, one), many([]string{"RPUSHX", "l"}, one), many([]string{"RPUSHX", "nothing"}, one), many([]string{"SADD", "l"}, one),
		many([]string{"PFADD", "p"}, one),
	}
	n = 2101
	for _, command := range append(elements, [][]string{
		many([]string{"MSET"}, func(i int) []string { return []string{"k" + strconv.Itoa(i), "v"} }),
		many([]string{"MSETNX"}, func(i int) []string { return []string{"k" + strconv.Itoa(i+1000), "v"} }),
		many([]string{"MSETNX"}, func(i int) []string { return []string{"m" + strconv.Itoa(i), "v"} }),
		append(many([]string{"MSET"}, func(i int) []string { return []string{"o" + strconv.Itoa(i), "v"} }), "odd"),
		many([]string{"DEL", "h"}, func(i int) []string { return []string{"k" + strconv.Itoa(i)} }),
		many([]string{"UNLINK"}, func(i int) []string { return []string{"m" + strconv.Itoa(i)} }),
	}...) {
		want, got := bare.do(command...), sonic.do(function(callMode{}, command)...)
		if got != want {
			t.Errorf("%s of %d arguments: the reply is %.100q, bare Redis' is %.100q", command[0], len(command), got, want)
		}
		for _, entry := range entries(ctx, t, r.s) {
			for _, e := range entry {
				if len(e) > 4005 && e[0] != "L" { // who executes L cuts what it pushes
					t.Errorf("%s: an effect of %d values", command[0], len(e))
				}
				if err := replay(ctx, r.c, e); err != nil {
					t.Fatal(err)
				}
			}
		}
		b, s, c := holdings(ctx, t, r.b, true), holdings(ctx, t, r.s, true), holdings(ctx, t, r.c, true)
		if !slices.Equal(b, s) || !slices.Equal(s, c) {
			t.Fatalf("%s of %d arguments: the servers differ", command[0], len(command))
		}
	}
	n = 9001
	reply := sonic.do(function(callMode{}, many([]string{"SUNIONSTORE", "d"}, one))...)
	if !strings.HasPrefix(reply, "-SONICREFUSED SUNIONSTORE") {
		t.Errorf("a command that cannot be cut replies %.100q", reply)
	}
}

// sonic_ship notes the keys that a user's script changed, as they are then.
func TestScripts(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, w := newSonic(t, []string{"b"}, "lww", "n:", "none", "c:", "counter")
	for _, command := range []string{"SELECT 3", "SET same v", "HSET h f v", "SET gone v", "RPUSH l a", "SET c:n 1", "ZADD n:z 1 a", "SELECT 0"} {
		w.do(words(command)...)
	}
	keys := words("same h gone l s missing c:n n:z")
	run := func(mark bool) {
		t.Helper()
		w.do("MULTI")
		if mark {
			w.do(function(callMode{DB: 3, Tx: "1"}, append([]string{"MARK"}, keys...))...)
		}
		w.do("SELECT", "3")
		w.do("EVAL", `redis.call('HSET', 'h', 'g', 'w') redis.call('DEL', 'gone') redis.call('LPUSH', 'l', 'b') redis.call('SET', 's', 'v', 'PXAT', ARGV[1])
			redis.call('INCR', 'c:n') redis.call('ZADD', 'n:z', 'inf', 'b') redis.call('PEXPIREAT', 'h', ARGV[1])`, "0", far)
		w.do("SELECT", "0")
		w.do(function(callMode{DB: 3, Tx: "1"}, append([]string{"SHIP"}, keys...))...)
		if reply := w.do("EXEC"); strings.Contains(reply, "\n-") {
			t.Fatal(reply)
		}
	}
	run(true)
	all := entries(ctx, t, c)
	if len(all) != 1 {
		t.Fatalf("entries are %q", all)
	}
	want := commands("D l 3 h\nH l 3 h " + far + " f v g w\nD l 3 gone\nR l 3 l DUMP \"\"\nS l 3 s v " + far + "\nD n 3 n:z\nZ n 3 n:z \"\" 1 a inf b")
	for i, e := range all[0] {
		if i >= len(want) || !matches(e, want[i], 3) {
			t.Errorf("effect is %q, want %q", e, want[min(i, len(want)-1)])
		}
	}
	if len(all[0]) != len(want) {
		t.Errorf("effects are %q", all[0])
	}
	run(false)
	if got := text(entries(ctx, t, c)); !strings.Contains(got, "S l 3 same v") || !strings.Contains(got, "D l 3 missing") {
		t.Errorf("without a mark all keys are shipped, not %q", got)
	}
}

// What a write notes of versions is the version of its entry.
func TestNotes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, w := newSonic(t, []string{"b"}, "lww", "n:", "none")
	for command, want := range map[string]string{
		"SET k v":                        "k0:k=ID",
		"SET k v PXAT " + far:            "k0:k=ID " + far,
		"SET n:k v":                      "",
		"GETDEL k":                       "k0:k=ID",
		"PEXPIREAT x " + far:             "x0:x=ID " + far,
		"HSET h f v":                     "e0:1:hf=ID;th0:h=ID",
		"HDEL h f g":                     "e0:1:hf=ID -",
		"SADD s a b":                     "e0:1:sa=ID;e0:1:sb=ID;ts0:s=ID",
		"SREM sp a":                      "e0:2:spa=ID -;x0:sp=ID",
		"ZADD z 1 a":                     "e0:1:za=ID;tz0:z=ID",
		"RPUSH l a":                      "k0:l=ID L",
		"RENAME from to":                 "k0:from=ID;k0:to=ID " + far + ";x0:to=ID " + far,
		"MSET a 1 b 2":                   "k0:a=ID;k0:b=ID",
		"COPY x y DB 5":                  "k5:y=ID L",
		"SDIFFSTORE nothing is there":    "",
		"GEOADD g 13.36 38.11 a":         "e0:1:ga=ID;tz0:g=ID",
		"SMOVE from2 to2 a":              "e0:5:from2a=ID -;e0:3:to2a=ID;ts0:to2=ID",
		"ZINCRBY z 1 m":                  "e0:1:zm=ID;tz0:z=ID",
		"HINCRBYFLOAT f g 1":             "e0:1:fg=ID;th0:f=ID",
		"SETRANGE r 1 a":                 "k0:r=ID L",
		"ZRANGESTORE d zz 0 -1":          "k0:d=ID",
		"SET k v NX":                     "k0:k=ID",
		"XADD t 1-1 f v":                 "k0:t=ID L",
		"BLPOP ll 0":                     "k0:ll=ID",
		"GETEX x PXAT " + far:            "x0:x=ID " + far,
		"PERSIST xp":                     "x0:xp=ID",
		"ZREMRANGEBYSCORE zz -inf +inf":  "e0:2:zza=ID -",
		"LMPOP 1 ll LEFT COUNT 1":        "k0:ll=ID",
		"RESTORE bad 0 x":                "",
		"SPOP sp":                        "e0:2:spa=ID -;x0:sp=ID",
		"GEORADIUS zz 0 0 1 km STORE zz": "k0:zz=ID",
	} {
		c.FlushAll(ctx)
		open(ctx, t, c, []string{"b"}, "lww", "n:", "none")
		for _, before := range commands("SET x v\nHSET h f v\nSADD sp a\nPEXPIREAT sp " + far + "\nHSET from f v\nPEXPIREAT from " + far +
			"\nSADD from2 a\nZADD zz 1 a\nRPUSH ll a\nSET xp v PXAT " + far) {
			w.do(before...)
		}
		if command[:5] == "GETDE" {
			w.do("SET", "k", "v")
		}
		if reply := w.do(function(callMode{}, words(command))...); reply[0] == '-' && want != "" {
			t.Errorf("%s: %q", command, reply)
		}
		id := "none"
		if all := c.XRange(ctx, script.KeysOf(0).Outbox, "-", "+").Val(); len(all) == 1 {
			id = all[0].ID
		}
		var got []string
		for field, value := range c.HGetAll(ctx, script.KeysOf(0).Versions).Val() {
			got = append(got, field+"="+strings.Replace(value, id, "ID", 1))
		}
		slices.Sort(got)
		wanted := strings.Split(want, ";")
		slices.Sort(wanted)
		if strings.Join(got, ";") != strings.Join(wanted, ";") {
			t.Errorf("%s notes %q, want %q", command, got, wanted)
		}
	}
}

// Load replaces a library of another version only, and refuses an unfit Redis.
func TestLoad(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, w := newSonic(t, []string{"b"}, "lww")
	_, version, err := script.Library()
	if err != nil {
		t.Fatal(err)
	}
	if got := c.Do(ctx, "FCALL_RO", "sonic_version", 0).Val(); got != version {
		t.Errorf("sonic_version is %v, the library's is %s", got, version)
	}
	if err := script.Load(ctx, c); err != nil {
		t.Fatal(err)
	}
	set := function(callMode{}, words("SET k v"))
	if reply := w.do(set...); reply != "+OK\r\n" {
		t.Errorf("the same version was loaded again: %q", reply)
	}
	other := "#!lua name=sonic\nredis.register_function{function_name='sonic_version', flags={'no-writes'}, callback=function() return 'other' end}"
	if err := c.Do(ctx, "FUNCTION", "LOAD", "REPLACE", other).Err(); err != nil {
		t.Fatal(err)
	}
	if err := script.Load(ctx, c); err != nil {
		t.Fatal(err)
	}
	if reply := w.do(set...); !strings.HasPrefix(reply, "-SONICNOTREADY") {
		t.Errorf("a library that was replaced is not open, but replies %q", reply)
	}
	for _, info := range []string{"redis_version:6.2.7\r\n", "redis_version:8.0.1\r\n", "redis_mode:standalone\r\n"} {
		if err := script.Load(ctx, oldRedis(info)); !errors.Is(err, script.ErrUnfit) {
			t.Errorf("%q is fit: %v", info, err)
		}
	}
}

// An oldRedis answers INFO with itself.
type oldRedis string

func (o oldRedis) Do(ctx context.Context, args ...any) *redis.Cmd {
	cmd := redis.NewCmd(ctx, args...)
	if args[0] == "INFO" {
		cmd.SetVal(string(o))
	} else {
		cmd.SetErr(errors.New("no more than INFO is expected"))
	}
	return cmd
}

// Commands that need no memory work when Redis has reached its bound, and others fail as in bare
// Redis. A transaction is closed all the same.
func TestFullRedis(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	c, w := newSonic(t, []string{"b"}, "lww")
	bare := stack.PrivateRedis(t)
	b := dial(t, bare, 2)
	for _, command := range []string{"SET k v", "SADD s a b", "HSET l f v", "CONFIG SET maxmemory 1"} {
		w.do(words(command)...)
		b.do(words(command)...)
	}
	mode := callMode{Tx: "1"}
	for command, want := range map[string]string{
		"SET l v": "", "INCR n": "", "HSET h f v": "", "LPUSH p a": "", "COPY k j": "", "DEL k": "D l 0 k", "SREM s a": `a l 0 s "" a`,
		"RENAME l m": "D l 0 m;H l 0 m \"\" f v;D l 0 l", "SMOVE s r b": "a l 0 s \"\" b;A l 0 r \"\" b",
	} {
		wanted, got := b.do(words(command)...), w.do(function(mode, words(command))...)
		if got[0] == '-' {
			got = "-" + script.ErrorOf(strings.TrimSpace(got[1:])) + "\r\n"
		}
		if got != wanted {
			t.Errorf("%s: the reply is %q, bare Redis' is %q", command, got, wanted)
		}
		if effects := strings.ReplaceAll(want, `""`, ""); text(entries(ctx, t, c)) != strings.ReplaceAll(effects, ";", "\n") {
			t.Errorf("%s has other effects than %q", command, want)
		}
	}
	if reply := w.do(function(mode, []string{"TX"})...); reply[0] != '$' || reply[1] == '-' {
		t.Errorf("the end of a transaction replies %q", reply)
	}
}

// A Redis that became a replica refuses writes with the error of bare Redis.
func TestReplica(t *testing.T) {
	t.Parallel()
	_, w := newSonic(t, []string{"b"}, "lww")
	b := dial(t, stack.PrivateRedis(t), 2)
	for _, conn := range []*rawConn{w, b} {
		conn.do("REPLICAOF", "127.0.0.1", "1")
	}
	wanted, got := b.do("SET", "k", "v"), w.do(function(callMode{}, words("SET k v"))...)
	if got = "-" + script.ErrorOf(strings.TrimSpace(got[1:])) + "\r\n"; got != wanted {
		t.Errorf("the reply is %q, bare Redis' is %q", got, wanted)
	}
}

// State keys have names that tell them from clients' keys.
func TestKeys(t *testing.T) {
	t.Parallel()
	k := script.KeysOf(12)
	for _, key := range []string{k.Outbox, k.Versions, k.Cursors, k.Meta, stateKey(k, "part:b")} {
		if !strings.HasPrefix(key, "{sonic:12}") {
			t.Errorf("%q", key)
		}
	}
}
