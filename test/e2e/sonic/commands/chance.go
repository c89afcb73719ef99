package commands

import "strconv"

// Chance returns a write whose effect depends on the time or on chance, or that goes to another
// database: what has to be the same in all zones all the same. Its expiries are of at most three
// seconds, or of years.
func (w Words) Chance() []string {
	k := w.key
	soon := func() string { return strconv.Itoa(1 + w.IntN(w.IntN(3000)+1)) }
	db := func() string { return strconv.Itoa(w.IntN(2)) }
	choices := []func() []string{
		func() []string { return join("set", k(), w.value(), "px", soon()) },
		func() []string { return join("psetex", k(), soon(), w.value()) },
		func() []string { return join("getex", k(), "px", soon()) },
		func() []string { return join("pexpire", k(), soon()) },
		func() []string { return join("pexpire", k(), soon(), w.of("nx", "xx", "gt", "lt")) },
		func() []string { return join("expire", k(), w.of("1", "2", "100000000")) },
		func() []string { return join("spop", k()) },
		func() []string { return join("spop", k(), w.of("1", "2", "3")) },
		func() []string { return join("xadd", k(), "*", w.pairs(w.field, w.value)) },
		func() []string { return join("xadd", k(), "maxlen", "~", "3", "*", w.field(), w.value()) },
		func() []string { return join("move", k(), db()) },
		func() []string { return join("copy", k(), k(), "db", db(), "replace") },
		func() []string { return join("blpop", k(), k(), "0.02") },
		func() []string { return join("bzpopmax", k(), "0.02") },
		func() []string { return join("eval", "return redis.call('incr', KEYS[1])", "1", k()) },
		func() []string {
			return join("eval", "redis.call('del', KEYS[1]); return redis.call('hset', KEYS[2], 'f', redis.call('time')[2])", "2", k(), k())
		},
		func() []string {
			return join("eval", "return redis.call('zadd', KEYS[1], math.random(9), ARGV[1])", "1", k(), w.member())
		},
	}
	return choices[w.IntN(len(choices))]()
}
