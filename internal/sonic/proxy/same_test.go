package proxy_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/stack"
)

// random returns the seed and the number of rounds of a test: always the same in an ordinary run.
// AVIARY_TEST_STEPS asks for so many rounds, with a seed of their own unless AVIARY_TEST_SEED has
// one.
func random(t *testing.T, ordinary int) (seed uint64, rounds int) {
	t.Helper()
	seed, rounds = 1, ordinary
	if text := os.Getenv("AVIARY_TEST_STEPS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		seed, rounds = rand.Uint64(), n
	}
	if text := os.Getenv("AVIARY_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	t.Logf("AVIARY_TEST_SEED=%d AVIARY_TEST_STEPS=%d", seed, rounds)
	return seed, rounds
}

// both are a bare Redis and one behind the proxy, which are asked the same.
type both struct{ bare, proxied *connection }

func short(text string) string { return text[:min(len(text), 2000)] }

// TestSameErrors holds the endpoint's errors against Redis' own.
func TestSameErrors(t *testing.T) {
	t.Parallel()
	bare, e := stack.PrivateRedis(t), start(t, opened(t), nil)
	for _, text := range []string{
		"nosuch\r\n", "nosuch a b c\r\n", "nosuch " + strings.Repeat("x", 300) + " y\r\n", "*1\r\n$0\r\n\r\n",
		"client\r\n", "client nosuch\r\n", "CLIENT NoSuch a\r\n", "config|get x\r\n", "get\r\n", "get a b\r\n", "GETRANGE a b\r\n",
		"config get\r\n", "object encoding\r\n", "xinfo stream\r\n", "\r\n\r\nping\r\n", "*0\r\n*-1\r\nping\r\n",
		"ping a b\r\n", "ping \"a b\\x41\\n\" \r\n", "echo 'it\\'s'\r\n", "select a\r\n", "select 99\r\n", "select -1\r\n", "select 1\r\nget a\r\n", "select 99999999999\r\n",
		"exec\r\n", "exec x\r\n", "multi\r\nset a 1\r\nexec x\r\nget a\r\nexec\r\n", "watch a\r\nset a 1\r\nexec x\r\nmulti\r\nexec\r\n", "subscribe a\r\nexec\r\n", "discard\r\n", "multi\r\nmulti\r\n", "multi\r\nwatch a\r\n", "multi\r\nnosuch\r\nexec\r\n", "multi\r\nget\r\nexec\r\n",
		"multi\r\nget a\r\nping\r\necho x\r\nexec\r\n", "multi\r\ndiscard\r\n", "watch a\r\nunwatch\r\n", "unwatch\r\n", "watch\r\n",
		"multi\r\nsave\r\nexec\r\n", "multi\r\nunwatch\r\nexec\r\n", "multi\r\nselect 3\r\nget a\r\nselect 99\r\nexec\r\n",
		"auth x\r\n", "auth x y\r\n", "auth a b c\r\n", "auth default x\r\n", "acl whoami\r\n", "acl nosuch\r\n", "hello 9\r\n", "hello x\r\n", "hello 2 nosuch\r\n", "hello 3 auth a b\r\n",
		"hello 3 setname \"a b\"\r\n", "client setname \"a b\"\r\n", "client setname ab\r\nclient getname\r\n", "client getname\r\n", "client no-evict x\r\n", "client no-evict on\r\n",
		"client reply x\r\n", "client kill a\r\n", "client kill id x\r\n", "client list type x\r\n", "client list x\r\n", "client unblock x\r\n", "client unblock 99\r\n", "client unblock 99 x\r\n",
		"client trackinginfo\r\n", "client caching yes\r\n", "client setinfo lib-name x\r\n", "reset\r\n", "reset a\r\n",
		"blpop a\r\n", "blpop a x\r\n", "blpop a -1\r\n", "blpop a nan\r\n", "blpop a 0.01\r\n", "blmove a b left right 0.01\r\n", "blmove a b x right 0.01\r\n", "blmove a b left right x\r\n",
		"brpoplpush a b 0.01\r\n", "brpoplpush a b x\r\n", "blmpop 0.01 1 a left\r\n", "blmpop 0.01 0 a left\r\n", "blmpop 0.01 5 a left\r\n", "blmpop x 0 a left\r\n", "blmpop 0.01 1 a x\r\n",
		"blmpop 0.01 1 a left count 0\r\n", "bzpopmin a 0.01\r\n", "bzpopmax a b c 0.01\r\n", "bzmpop 0.01 1 a min\r\n", "bzmpop 0.01 1 a x\r\n", "blpop a 1e300\r\n", "blpop a inf\r\n",
		"multi\r\nblpop a 0\r\nblmove a b left left 0\r\nbzpopmin a 0\r\nblmpop 0 1 a left\r\nbrpoplpush a b 0\r\nblpop a x\r\nexec\r\n",
		"scan 0\r\n", "scan x\r\n", "keys *\r\n", "randomkey\r\n", "dbsize\r\n", "scan 0 nosuch\r\n", "subscribe\r\n", "subscribe a b\r\nget x\r\nping\r\nping x\r\nunsubscribe a\r\nunsubscribe\r\nget x\r\n",
		"unsubscribe\r\n", "punsubscribe\r\n", "psubscribe a*\r\npunsubscribe\r\nget x\r\n", "ssubscribe a\r\nsunsubscribe\r\n", "ssubscribe a b c\r\nunsubscribe\r\nsubscribe a\r\nsunsubscribe b c\r\nping\r\nsunsubscribe\r\nunsubscribe\r\nsunsubscribe\r\nget x\r\n", "publish a b\r\n", "spublish a b\r\n", "pubsub channels\r\n", "xread block 1 streams a 0\r\n",
		"xread streams a\r\n", "xread count 1 streams a $\r\n", "xreadgroup group g c streams a >\r\n", "eval \"return 1\" 0\r\n", "eval \"return redis.call('get', KEYS[1])\" 1 a\r\n", "eval x 0\r\n", "eval \"return 1\" x\r\n",
		"eval \"return 1\" -1\r\n", "eval \"return 1\" 5 a\r\n", "evalsha x 0\r\n", "evalsha x 1 a\r\n", "fcall x 0\r\n", "fcall x 1 a\r\n", "function list\r\n"[:0], "sort a\r\n", "sort a store b\r\n", "georadius a 1 1 1 km\r\n",
		"cluster info\r\n", "cluster slots\r\n", "asking x\r\n", "readonly\r\n", "readwrite\r\n", "quit x\r\n", "command count\r\n", "command info get\r\n", "command docs get\r\n", "command getkeys get a\r\n", "command list filterby module x\r\n",
		"memory usage a\r\n", "object freq a\r\n", "object help\r\n", "client help\r\n", "command help\r\n", "latency latest\r\n", "time x\r\n", "lolwut version 1\r\n", "wait 0\r\n",
	} {
		for _, hello := range []string{"", "hello 3\r\n"} {
			if text == "" {
				continue
			}
			pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
			if hello != "" {
				for _, c := range []*connection{pair.bare, pair.proxied} {
					c.send(t, hello)
					_, err := c.reply()
					require.NoError(t, err)
				}
			}
			// RESET ends what is compared: it runs in every state of a client.
			pair.sameUntil(t, text+string(resp.AppendCommand(nil, "RESET")), "+RESET")
			_ = pair.bare.Close()
			_ = pair.proxied.Close()
		}
	}
}

// sameUntil compares all replies up to one that holds last, or the end of the connection.
func (b both) sameUntil(t *testing.T, text, last string) {
	t.Helper()
	for _, c := range []*connection{b.bare, b.proxied} {
		c.send(t, text)
		require.NoError(t, c.SetReadDeadline(time.Now().Add(await.Patience)))
	}
	want, got := b.bare.until(last), b.proxied.until(last)
	assert.Equal(t, want, got, "replies to %q", short(text))
}

func (c *connection) until(last string) (replies []string) {
	for {
		reply, err := c.reply()
		if err != nil {
			return append(replies, fmt.Sprintf("%q and no more", reply))
		}
		replies = append(replies, reply)
		if strings.Contains(reply, last) {
			return replies
		}
	}
}

// TestSameProtocolErrors sends what is no request.
func TestSameProtocolErrors(t *testing.T) {
	t.Parallel()
	bare, e := stack.PrivateRedis(t), start(t, opened(t), nil)
	for _, text := range []string{
		"*x\r\n", "*1x\r\n", "*01\r\n", "* 1\r\n", "*+1\r\n", "*99999999999\r\n", "*1\r\nx\r\n", "*1\r\n:1\r\n", "*1\r\n$x\r\n", "*1\r\n$-1\r\n", "*1\r\n$999999999999\r\n", "*1\r\n$01\r\nx\r\n",
		"*1\r\n\r\n", "\"a\r\n", "'a\r\n", "\"a\"b\r\n", "ping\r\n*x\r\n", "*" + strings.Repeat("1", 70000), "*1\r\n$" + strings.Repeat("1", 70000), strings.Repeat("a", 70000),
		"*2\r\n$4\r\nECHO\r\n$3\r\nabcdeping\r\n*x\r\n", "*1\r\n$4\r\nPINGxx*1\r\n$4\r\nPING\r\n*x\r\n", "*1\r\n(4\r\n", "get a\r\nget b\r\n*3\r\n$1\r\na\r\n$b\r\n",
	} {
		pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
		for _, c := range []*connection{pair.bare, pair.proxied} {
			_, _ = c.Write([]byte(text)) // it may be closed before all is sent
		}
		require.Equal(t, pair.bare.until("nothing"), pair.proxied.until("nothing"), "replies to %q", short(text))
		_ = pair.bare.Close()
		_ = pair.proxied.Close()
	}
}

// TestSameWithinTransactions compares replies that are null, or hold nulls, alone and within EXEC.
func TestSameWithinTransactions(t *testing.T) {
	t.Parallel()
	bare, e := stack.PrivateRedis(t), start(t, opened(t), nil)
	commands := strings.Split(strings.TrimSpace(`
randomkey
rpush l a b
hset h f v
sadd s m
zadd z 1 m
geoadd g 1 2 m
xadd x 1-1 f v
set n 1
geopos g m none
geopos none m
geohash g none m
geodist g m none
georadius none 1 1 1 km
hmget h f none
hmget none f
hrandfield none
hrandfield none 2
hrandfield h -2 withvalues
srandmember none
srandmember none 2
zrandmember none
zrandmember none 2
zrandmember z 1 withscores
smismember s m none
zmscore z m none
zmscore none m
zscore z none
zrank z none
zincrby z 1.5 m
zadd z nx incr 1 m
zadd z xx incr 1 none
lpop none
lpop none 1
lpop none 0
lpop l 0
rpop none 2
lpos l none
lpos l none count 0
lmpop 1 none left
lmpop 2 none l left count 1
zmpop 1 none min
zmpop 1 z min
zpopmin none
zpopmin none 2
spop none
spop none 2
lmove none l left left
rpoplpush none l
blpop none 0.01
blmove none l left left 0.01
brpoplpush none l 0.01
blmpop 0.01 1 none left
bzpopmin none 0.01
bzmpop 0.01 1 none min
mget n none l
get none
getdel none
getex none
getset none v
set none v xx
set n v get
set m v nx get
set n v nx
bitfield none get u8 0 overflow fail incrby u2 0 9
bitfield b overflow fail incrby u2 0 9 set u8 0 1
xread streams none 0
xread block 1 streams none 0
xread streams x 0
xrange none - +
xadd none nomkstream 1-1 f v
xautoclaim x nogroup c 0 0
object encoding none
memory usage none
dump none
sort none get #
sort l get none* get #
lcs none none
incrbyfloat f 1.5
hincrbyfloat h g 1.5
eval "return {1, false, {false}}" 0
eval "return redis.call('lpop', KEYS[1], 1)" 1 none
eval "return {redis.call('geopos', KEYS[1], 'm', 'none')}" 1 g
eval "redis.setresp(3) return {redis.call('get', KEYS[1]), redis.call('hgetall', KEYS[2])}" 2 none h
copy none l`), "\n")
	alone, together := "", ""
	for _, words := range commands {
		alone += words + "\r\n"
		together += "multi\r\n" + words + "\r\nexec\r\n"
	}
	reset := string(resp.AppendCommand(nil, "RESET"))
	clean := ""
	for _, key := range strings.Fields("l h s z g x n m b f none") {
		clean += "del " + key + "\r\n"
	}
	for _, hello := range []string{"hello 2\r\n", "hello 3\r\n"} {
		for _, text := range []string{alone, together, "multi\r\n" + alone + "exec\r\n"} {
			pair := both{dial(t, bare.Addr()), dial(t, e.addr)}
			for _, c := range []*connection{pair.bare, pair.proxied} {
				c.send(t, hello)
				_, err := c.reply()
				require.NoError(t, err)
			}
			pair.sameUntil(t, clean+text+reset, "+RESET")
		}
	}
}
