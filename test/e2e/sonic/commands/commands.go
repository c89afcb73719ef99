// Package commands makes random Redis commands, for tests that compare Redis with Sonic.
package commands

import (
	"math/rand/v2"
	"strconv"
	"strings"
)

// Words makes random commands. Their replies depend only on the commands before them. It is not
// safe for concurrent use.
type Words struct {
	*rand.Rand
	// Keys names keys. Default: one of k0 to k11.
	Keys func() string
}

func (w Words) of(choices ...string) string { return choices[w.IntN(len(choices))] }

func (w Words) key() string {
	if w.Keys != nil {
		return w.Keys()
	}
	return "k" + strconv.Itoa(w.IntN(12))
}

func (w Words) number() string { return strconv.Itoa(w.IntN(20) - 5) }
func (w Words) member() string { return strconv.Itoa(w.IntN(8)) } // sets of integers have one order
func (w Words) value() string {
	return w.of("", "a", "b", "10", "-3", "3.5", "x\r\ny", "9007199254740993", "9223372036854775807", strings.Repeat("v", w.IntN(200)), "\x00\xff")
}
func (w Words) field() string { return w.of("f", "g", "h", "") }
func (w Words) score() string { return w.of("1", "2.5", "-inf", "+inf", "0", "1e20", "-7.25", "x") }

func (w Words) times(n int, f func() string) []string {
	var all []string
	for range 1 + w.IntN(n) {
		all = append(all, f())
	}
	return all
}

func join(parts ...any) []string {
	var all []string
	for _, p := range parts {
		switch p := p.(type) {
		case string:
			all = append(all, p)
		case []string:
			all = append(all, p...)
		}
	}
	return all
}

func (w Words) pairs(first, second func() string) []string {
	var all []string
	for range 1 + w.IntN(3) {
		all = append(all, first(), second())
	}
	return all
}

// Read returns a command that changes nothing.
func (w Words) Read() []string {
	k := w.key
	choices := []func() []string{
		func() []string { return join("get", k()) },
		func() []string { return join("mget", w.times(4, k)) },
		func() []string { return join("exists", w.times(4, k)) },
		func() []string { return join("type", k()) },
		func() []string { return join("strlen", k()) },
		func() []string { return join("getrange", k(), w.number(), w.number()) },
		func() []string { return join("getbit", k(), w.number()) },
		func() []string { return join("bitcount", k(), w.number(), w.number()) },
		func() []string { return join("bitpos", k(), w.of("0", "1", "2")) },
		func() []string { return join("hget", k(), w.field()) },
		func() []string { return join("hmget", k(), w.times(3, w.field)) },
		func() []string { return join("hgetall", k()) },
		func() []string { return join("hlen", k()) },
		func() []string { return join("hexists", k(), w.field()) },
		func() []string { return join("smembers", k()) },
		func() []string { return join("sismember", k(), w.member()) },
		func() []string { return join("smismember", k(), w.times(3, w.member)) },
		func() []string { return join("sunion", w.times(3, k)) },
		func() []string { return join("sinter", w.times(3, k)) },
		func() []string { return join("sintercard", "2", k(), k()) },
		func() []string { return join("scard", k()) },
		func() []string { return join("lrange", k(), w.number(), w.number()) },
		func() []string { return join("llen", k()) },
		func() []string { return join("lindex", k(), w.number()) },
		func() []string { return join("lpos", k(), w.value()) },
		func() []string {
			return join("zrange", k(), w.number(), w.number(), w.times(1, func() string { return w.of("withscores", "rev", "x") }))
		},
		func() []string { return join("zscore", k(), w.member()) },
		func() []string { return join("zmscore", k(), w.times(3, w.member)) },
		func() []string { return join("zrank", k(), w.member()) },
		func() []string { return join("zcount", k(), w.score(), w.score()) },
		func() []string { return join("zrangebyscore", k(), w.score(), w.score(), "withscores") },
		func() []string { return join("zunion", "2", k(), k(), "withscores") },
		func() []string { return join("xrange", k(), "-", "+") },
		func() []string { return join("xlen", k()) },
		func() []string { return join("xread", "count", "2", "streams", k(), k(), "0", "1") },
		func() []string { return join("xinfo", "stream", k()) },
		func() []string { return join("expiretime", k()) },
		func() []string { return join("object", "encoding", k()) },
		func() []string { return join("sort", k()) },
		func() []string { return join("sort_ro", k(), "alpha", "desc") },
		func() []string { return join("lcs", k(), k()) },
		func() []string { return join("pfcount", w.times(2, k)) },
		func() []string { return join("geopos", k(), w.member()) },
		func() []string { return join("geodist", k(), w.member(), w.member()) },
		func() []string { return join("dbsize") },
		func() []string { return join("touch", w.times(2, k)) },
		func() []string { return join("ping") },
		func() []string { return join("echo", w.value()) },
		func() []string { return join("get") },
		func() []string { return join("nosuch", k()) },
		func() []string {
			return join("eval_ro", "return {redis.call('type', KEYS[1]), ARGV[1], false, 3.7}", "1", k(), w.value())
		},
	}
	return choices[w.IntN(len(choices))]()
}

// Write returns a command that may change something.
func (w Words) Write() []string {
	k := w.key
	far := func() string { return strconv.Itoa(4000000000 + w.IntN(1000)) }
	choices := []func() []string{
		func() []string { return join("set", k(), w.value()) },
		func() []string { return join("set", k(), w.value(), w.of("nx", "xx", "get", "keepttl", "bad")) },
		func() []string { return join("set", k(), w.value(), "exat", far()) },
		func() []string { return join("set", k(), w.value(), "ex", w.of("0", "-1", "x")) },
		func() []string { return join("setnx", k(), w.value()) },
		func() []string { return join("setex", k(), w.of("1000000", "0", "x"), w.value()) },
		func() []string { return join("getset", k(), w.value()) },
		func() []string { return join("getdel", k()) },
		func() []string { return join("getex", k(), "exat", far()) },
		func() []string { return join("getex", k(), "persist") },
		func() []string { return join("mset", w.pairs(k, w.value)) },
		func() []string { return join("msetnx", w.pairs(k, w.value)) },
		func() []string { return join("mset", k(), "1", k()) },
		func() []string { return join("append", k(), w.value()) },
		func() []string { return join("setrange", k(), w.number(), w.value()) },
		func() []string { return join("setbit", k(), w.number(), w.of("0", "1", "2")) },
		func() []string { return join("bitfield", k(), "incrby", "i8", "0", w.number(), "get", "u4", "1") },
		func() []string { return join("bitop", w.of("and", "or", "xor", "not"), k(), k(), k()) },
		func() []string { return join(w.of("incr", "decr"), k()) },
		func() []string {
			return join(w.of("incrby", "decrby"), k(), w.of("5", "-2", "9007199254740993", "9223372036854775807", "x"))
		},
		func() []string { return join("incrbyfloat", k(), w.of("1.5", "-0.25", "x", "1e400")) },
		func() []string { return join("del", w.times(3, k)) },
		func() []string { return join("unlink", w.times(3, k)) },
		func() []string { return join("expireat", k(), far()) },
		func() []string { return join("expireat", k(), far(), w.of("nx", "xx", "gt", "lt", "bad")) },
		func() []string { return join("pexpireat", k(), far()+"000") },
		func() []string { return join("expire", k(), w.of("-1", "x", "0")) },
		func() []string { return join("persist", k()) },
		func() []string { return join("rename", k(), k()) },
		func() []string { return join("renamenx", k(), k()) },
		func() []string { return join("copy", k(), k(), w.of("replace", "bad")) },
		func() []string { return join("hset", k(), w.pairs(w.field, w.value)) },
		func() []string { return join("hset", k(), "f") },
		func() []string { return join("hmset", k(), w.pairs(w.field, w.value)) },
		func() []string { return join("hsetnx", k(), w.field(), w.value()) },
		func() []string { return join("hdel", k(), w.times(3, w.field)) },
		func() []string { return join("hincrby", k(), w.field(), w.of("3", "-1", "9007199254740993", "x")) },
		func() []string { return join("hincrbyfloat", k(), w.field(), w.of("1.5", "-0.25", "x")) },
		func() []string { return join("sadd", k(), w.times(4, w.member)) },
		func() []string { return join("srem", k(), w.times(4, w.member)) },
		func() []string { return join("smove", k(), k(), w.member()) },
		func() []string { return join(w.of("sunionstore", "sinterstore", "sdiffstore"), k(), k(), k()) },
		func() []string { return join(w.of("lpush", "rpush", "lpushx", "rpushx"), k(), w.times(4, w.value)) },
		func() []string { return join(w.of("lpop", "rpop"), k()) },
		func() []string { return join(w.of("lpop", "rpop"), k(), w.of("0", "1", "3", "-1", "x")) },
		func() []string { return join("lmpop", "2", k(), k(), w.of("left", "right", "x")) },
		func() []string { return join("lmpop", w.of("0", "1", "x"), k(), "left", "count", w.number()) },
		func() []string { return join("lset", k(), w.number(), w.value()) },
		func() []string { return join("linsert", k(), w.of("before", "after", "x"), w.value(), w.value()) },
		func() []string { return join("lrem", k(), w.number(), w.value()) },
		func() []string { return join("ltrim", k(), w.number(), w.number()) },
		func() []string { return join("lmove", k(), k(), w.of("left", "right"), w.of("left", "right", "x")) },
		func() []string { return join("rpoplpush", k(), k()) },
		func() []string { return join("zadd", k(), w.pairs(w.score, w.member)) },
		func() []string {
			return join("zadd", k(), w.of("nx", "xx", "gt", "lt", "ch", "incr"), w.score(), w.member())
		},
		func() []string { return join("zadd", k(), "nx", "incr", w.score(), w.member()) },
		func() []string { return join("zincrby", k(), w.score(), w.member()) },
		func() []string { return join("zrem", k(), w.times(3, w.member)) },
		func() []string { return join(w.of("zpopmin", "zpopmax"), k()) },
		func() []string { return join(w.of("zpopmin", "zpopmax"), k(), w.of("0", "2", "-1", "x")) },
		func() []string { return join("zmpop", "2", k(), k(), w.of("min", "max", "x")) },
		func() []string { return join("zremrangebyrank", k(), w.number(), w.number()) },
		func() []string { return join("zremrangebyscore", k(), w.score(), w.score()) },
		func() []string { return join("zunionstore", k(), "2", k(), k(), "weights", "1", w.of("2", "x")) },
		func() []string { return join("zrangestore", k(), k(), w.number(), w.number()) },
		func() []string { return join("zdiffstore", k(), "2", k(), k()) },
		func() []string { return join("geoadd", k(), w.of("13.36", "500"), "38.1", w.member()) },
		func() []string {
			return join("geosearchstore", k(), k(), "fromlonlat", "13", "38", "byradius", "500", "km")
		},
		func() []string { return join("georadius", k(), "13", "38", "500", "km", "store", k()) },
		func() []string { return join("pfadd", k(), w.times(3, w.value)) },
		func() []string { return join("pfmerge", k(), k(), k()) },
		func() []string { return join("sort", k(), "alpha", "store", k()) },
		func() []string {
			return join("xadd", k(), w.of("1-1", "2-1", "3-1", "5-1", "x", "99-1"), w.pairs(w.field, w.value))
		},
		func() []string { return join("xadd", k(), "nomkstream", "7-1", "f", "v") },
		func() []string { return join("xdel", k(), "1-1", "2-1") },
		func() []string { return join("xtrim", k(), "maxlen", w.number()) },
		func() []string { return join("xgroup", "create", k(), "g", "0", w.of("mkstream", "x")) },
		func() []string { return join("xreadgroup", "group", "g", "c", "count", "1", "streams", k(), ">") },
		func() []string { return join("xack", k(), "g", "1-1") },
		func() []string { return join("blpop", k(), k(), "0.001") },
		func() []string { return join("brpop", k(), "0.001") },
		func() []string { return join("blmove", k(), k(), "left", "right", "0.001") },
		func() []string { return join("bzpopmin", k(), k(), "0.001") },
		func() []string { return join("bzmpop", "0.001", "2", k(), k(), "max") },
		func() []string { return join("blmpop", "0.001", "2", k(), k(), "right", "count", "2") },
		func() []string {
			return join("eval", "redis.call('set', KEYS[1], ARGV[1]); return {1, 2.5, false, ARGV[1]}", "1", k(), w.value())
		},
		func() []string { return join("eval", "return redis.call('lpush', KEYS[1], 'a')", "1", k()) },
	}
	return choices[w.IntN(len(choices))]()
}

// Transaction returns MULTI, some commands, and EXEC or DISCARD.
func (w Words) Transaction() [][]string {
	all := [][]string{{"multi"}}
	for range w.IntN(6) {
		if w.IntN(3) == 0 {
			all = append(all, w.Read())
			continue
		}
		if one := w.Write(); one[0] != "eval" {
			all = append(all, one)
		}
	}
	return append(all, []string{w.of("exec", "exec", "discard")})
}
