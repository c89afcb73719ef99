package script_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// A generator makes random commands on few keys, so that they meet keys of all types.
type generator struct{ *rand.Rand }

func (g generator) pick(list ...string) string { return list[g.IntN(len(list))] }
func (g generator) key() string                { return "key" + strconv.Itoa(g.IntN(6)) }
func (g generator) element() string            { return g.pick("a", "b", "c", "d", "e", "") }
func (g generator) number() string {
	return g.pick("0", "1", "-1", "3", "7", "9007199254740993", "-9007199254740995", "1.5", "-2.25", "x", "inf", "1e3")
}
func (g generator) index() string { return strconv.Itoa(g.IntN(7) - 3) }
func (g generator) bytes() string {
	return g.pick("0", "12", "value", strings.Repeat("y", g.IntN(300)), string([]byte{0, 0xff, '\n', 0x80}))
}

// some returns the words of one to three groups.
func (g generator) some(group func() []string) []string {
	var all []string
	for range 1 + g.IntN(3) {
		all = append(all, group()...)
	}
	return all
}

func (g generator) keys() []string { return g.some(func() []string { return []string{g.key()} }) }

func (g generator) elements() []string {
	return g.some(func() []string { return []string{g.element()} })
}

// command returns a command whose reply and effect do not depend on the time or on chance.
func (g generator) command() []string {
	if g.IntN(40) == 0 { // an argument is missing
		if c := g.wellFormed(); c[0] != "SPOP" { // without its count it would choose
			return c[:len(c)-1]
		}
	}
	return g.wellFormed()
}

func (g generator) wellFormed() []string {
	k := g.key()
	line := func(words ...string) []string { return words }
	with := func(rest []string, words ...string) []string { return append(words, rest...) }
	counted := func(keys []string) []string { return append([]string{strconv.Itoa(len(keys))}, keys...) }
	switch g.IntN(60) {
	case 0:
		return line("SET", k, g.bytes())
	case 1:
		return line("SET", k, g.bytes(), g.pick("NX", "XX", "GET", "KEEPTTL"), g.pick("GET", "KEEPTTL", "xx"))
	case 2:
		return line("SET", k, g.bytes(), "PXAT", g.pick(far, "1000", "32503680000001"))
	case 3:
		return line(g.pick("SETNX", "GETSET", "APPEND"), k, g.bytes())
	case 4:
		return line(g.pick("GETDEL", "PERSIST", "DEL", "UNLINK"), k)
	case 5:
		return line("GETEX", k, g.pick("PERSIST", "PERSIST", "x"))
	case 6:
		return line("GETEX", k, "PXAT", g.pick(far, "1000"))
	case 7:
		return with(g.some(func() []string { return line(g.key(), g.bytes()) }), g.pick("MSET", "MSETNX"))
	case 8:
		return line(g.pick("INCR", "DECR"), k)
	case 9:
		return line(g.pick("INCRBY", "DECRBY", "INCRBYFLOAT"), k, g.number())
	case 10:
		return line("SETRANGE", k, g.index(), g.bytes())
	case 11:
		return line("SETBIT", k, strconv.Itoa(g.IntN(40)), g.pick("0", "1"))
	case 12, 13:
		return line("BITFIELD", k, "OVERFLOW", g.pick("WRAP", "SAT", "FAIL"), g.pick("SET", "INCRBY"), g.pick("u8", "i64", "u63", "i5"),
			g.pick("0", "5", "#1"), g.pick("1", "-1", "9007199254740993", "9223372036854775807"), "GET", g.pick("i64", "u63"), g.pick("0", "3"))
	case 14:
		return with(g.keys(), "BITOP", g.pick("AND", "OR", "XOR", "NOT"), k)
	case 15:
		return with(g.keys(), g.pick("DEL", "UNLINK"))
	case 16, 17:
		return line(g.pick("PEXPIREAT"), k, g.pick(far, "1000", "32503680000001"))
	case 18:
		return line("PEXPIREAT", k, g.pick(far, "1000"), g.pick("NX", "XX", "GT", "LT"))
	case 19:
		return line(g.pick("RENAME", "RENAMENX"), k, g.key())
	case 20:
		return line("COPY", k, g.key(), g.pick("REPLACE", "DB"), g.pick("REPLACE", "3", "5"))
	case 21:
		return line("MOVE", k, g.pick("3", "5", "0"))
	case 22:
		return line("SORT", k, g.pick("ALPHA", "DESC"), g.pick("ALPHA", "ASC"), "STORE", g.key())
	case 23, 24, 25:
		return with(g.some(func() []string { return line(g.element(), g.bytes()) }), g.pick("HSET", "HMSET"), k)
	case 26:
		return line("HSETNX", k, g.element(), g.bytes())
	case 27:
		return line(g.pick("HINCRBY", "HINCRBYFLOAT"), k, g.element(), g.number())
	case 28:
		return with(g.elements(), g.pick("HDEL", "SREM", "ZREM"), k)
	case 29, 30, 31:
		return with(g.elements(), "SADD", k)
	case 32:
		return line("SMOVE", k, g.key(), g.element())
	case 33:
		return line("SPOP", k, "9") // all of them
	case 34:
		return with(g.keys(), g.pick("SUNIONSTORE", "SINTERSTORE", "SDIFFSTORE"), k)
	case 35, 36, 37:
		return with(g.some(func() []string { return line(g.number(), g.element()) }), "ZADD", k)
	case 38:
		return with(g.some(func() []string { return line(g.number(), g.element()) }), "ZADD", k, g.pick("NX", "XX", "GT", "LT", "CH"), g.pick("CH", "XX", "INCR"))
	case 39:
		return line("ZINCRBY", k, g.number(), g.element())
	case 40:
		return line("ZREMRANGEBYSCORE", k, g.pick("-inf", "(1", "x"), g.pick("3", "+inf"))
	case 41:
		return line("ZREMRANGEBYRANK", k, g.index(), g.index())
	case 42:
		// Redis leaves open what becomes of members of different scores. All of this key's have one.
		if g.IntN(2) == 0 {
			return with(g.some(func() []string { return line("0", g.element()) }), "ZADD", "onescore")
		}
		return line("ZREMRANGEBYLEX", "onescore", g.pick("-", "[b"), g.pick("+", "(d"))
	case 43:
		return line(g.pick("ZPOPMIN", "ZPOPMAX"), k)
	case 44:
		return line(g.pick("ZPOPMIN", "ZPOPMAX"), k, g.pick("0", "2", "9", "-1"))
	case 45:
		return append(with(counted(g.keys()), "ZMPOP"), g.pick("MIN", "MAX"), "COUNT", g.pick("1", "3", "0"))
	case 46:
		return append(with(counted(g.keys()), g.pick("ZUNIONSTORE", "ZINTERSTORE"), k), "AGGREGATE", g.pick("SUM", "MAX"))
	case 47:
		return line("ZRANGESTORE", k, g.key(), g.index(), g.index())
	case 48, 49, 50:
		return with(g.elements(), g.pick("LPUSH", "RPUSH", "LPUSHX", "RPUSHX"), k)
	case 51:
		return line(g.pick("LPOP", "RPOP"), k)
	case 52:
		return line(g.pick("LPOP", "RPOP"), k, g.pick("0", "1", "2", "9"))
	case 53:
		return append(with(counted(g.keys()), "LMPOP"), g.pick("LEFT", "RIGHT"), "COUNT", g.pick("1", "3"))
	case 54:
		return line("LMOVE", k, g.key(), g.pick("LEFT", "RIGHT"), g.pick("LEFT", "RIGHT"))
	case 55:
		return line(g.pick("LSET", "LREM", "LTRIM"), k, g.index(), g.pick("a", "1", "2"))
	case 56:
		return line("LINSERT", k, g.pick("BEFORE", "AFTER"), g.element(), g.element())
	case 57:
		return line("GEOADD", k, g.pick("13.361389", "200"), "38.115556", g.element(), "15.087269", "37.502669", g.element())
	case 58:
		return with(g.elements(), "PFADD", k)
	default:
		switch g.IntN(3) {
		case 0:
			return line("XADD", k, strconv.Itoa(g.IntN(200))+"-1", "field", g.bytes())
		case 1:
			return line("XDEL", k, strconv.Itoa(g.IntN(200))+"-1")
		default:
			return line("XTRIM", k, "MAXLEN", g.pick("1", "3"))
		}
	}
}

// Random commands get bare Redis' replies and leave what bare Redis holds; their effects make the
// same of an empty Redis.
func TestRandomCommands(t *testing.T) {
	t.Parallel()
	p := fromEnvironment(t, 1500)
	for i, policy := range []string{"lww", "none"} {
		for _, resp := range []int{2, 3} {
			t.Run(fmt.Sprint(policy, " RESP", resp), func(t *testing.T) {
				t.Parallel()
				ctx := t.Context()
				g := generator{rand.New(rand.NewPCG(p.seed, uint64(2*i+resp)))}
				r := newRig(ctx, t, policy)
				db := g.IntN(2) * 3
				bare, sonic := dial(t, r.bare, resp), dial(t, r.sonic, resp)
				bare.do("SELECT", strconv.Itoa(db))
				var last [][]string
				for i := range p.steps {
					command := g.command()
					last = append(last, command)
					want := bare.do(command...)
					got := translated(command, resp, sonic.do(function(callMode{DB: db, RESP3: resp == 3}, command)...))
					if !sameReply(command[0], got, want) {
						t.Fatalf("%q: the reply is %q, bare Redis' is %q; before it %q", command, got, want, last[max(0, i-20):])
					}
					if i%20 != 19 {
						continue
					}
					for _, entry := range entries(ctx, t, r.s) {
						for _, e := range entry {
							if err := replay(ctx, r.c, e); err != nil {
								t.Fatalf("%q: %v", e, err)
							}
						}
					}
					b, s, c := holdings(ctx, t, r.b, true), holdings(ctx, t, r.s, true), holdings(ctx, t, r.c, true)
					if !slices.Equal(b, s) || !slices.Equal(s, c) {
						t.Fatalf("after %q: bare Redis\n%q, Sonic's\n%q, made by effects\n%q", last[i-19:], b, s, c)
					}
				}
			})
		}
	}
}

// sameReply compares replies byte by byte, but for SPOP's: Redis gives its members in any order.
func sameReply(command, a, b string) bool {
	if command != "SPOP" {
		return a == b
	}
	x, y := strings.Split(a, "\r\n"), strings.Split(b, "\r\n")
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

// Redis leaves open what ZREMRANGEBYLEX removes of members of different scores. What it did remove
// is removed elsewhere.
func TestRemoveByLexOfDifferentScores(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	r := newRig(ctx, t, "lww")
	sonic := dial(t, r.sonic, 2)
	// A long member makes a skip list of the sorted set, with levels by chance: only some of the
	// removals find what a reading does not.
	long := strings.Repeat("m", 100)
	for range 200 {
		var reply string
		for _, command := range [][]string{
			{"DEL", "k"}, {"ZADD", "k", "0", long}, {"ZADD", "k", "0", "b", "3", "e", "7", "c", "9", "a"}, {"ZREM", "k", long},
			{"ZREMRANGEBYLEX", "k", "[b", "+"},
		} {
			reply = sonic.do(function(callMode{}, command)...)
		}
		for _, entry := range entries(ctx, t, r.s) {
			for _, e := range entry {
				if err := replay(ctx, r.c, e); err != nil {
					t.Fatalf("%q: %v", e, err)
				}
			}
		}
		if s, c := holdings(ctx, t, r.s, true), holdings(ctx, t, r.c, true); !slices.Equal(s, c) {
			t.Fatalf("the reply is %q, Sonic's Redis holds %q, made by effects %q", reply, s, c)
		}
		if reply == ":4\r\n" {
			return
		}
	}
	t.Fatal("no removal found the members")
}
