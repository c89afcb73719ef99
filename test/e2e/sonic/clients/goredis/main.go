// Command goredis exercises a Redis endpoint with go-redis. The documentation of package clients
// has its arguments and its output.
package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long the programs of all languages wait for anything. A wait ends as soon as it
// is over.
const patience = time.Minute

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "goredis:", err)
		os.Exit(1)
	}
}

var errFailed = errors.New("some checks failed")

// run takes the endpoint's URL, the protocol's version and a prefix for keys.
func run(ctx context.Context, args []string) error {
	if len(args) != 3 {
		return errors.New("want URL PROTOCOL PREFIX")
	}
	options, err := redis.ParseURL(args[0])
	if err != nil {
		return err
	}
	if options.Protocol, err = strconv.Atoi(args[1]); err != nil {
		return err
	}
	options.MaxRetries, options.ReadTimeout, options.ContextTimeoutEnabled = -1, patience, true
	failed := false
	for _, c := range checks() {
		ctx, cancel := context.WithTimeout(ctx, patience)
		client := redis.NewClient(options)
		t := &session{ctx: ctx, options: options, prefix: args[2], Client: client}
		t.attempt(c.run)
		if err := errors.Join(t.errs...); err != nil {
			failed = true
			fmt.Printf("FAILED %s: %s\n", c.name, strings.ReplaceAll(err.Error(), "\n", "; "))
		} else {
			fmt.Println("ok", c.name)
		}
		_ = client.Close()
		cancel()
	}
	if failed {
		return errFailed
	}
	return nil
}

type check struct {
	name string
	run  func(*session)
}

func checks() []check {
	return []check{
		{"connect", (*session).connect}, {"select", (*session).selectDB}, {"strings", (*session).strings}, {"binary", (*session).binary},
		{"expiry", (*session).expiry}, {"hashes", (*session).hashes}, {"lists", (*session).lists}, {"sets", (*session).sets},
		{"sorted_sets", (*session).sortedSets}, {"streams", (*session).streams}, {"pipeline", (*session).pipeline},
		{"transaction", (*session).transaction}, {"watch", (*session).watch}, {"blocking", (*session).blocking}, {"pubsub", (*session).pubsub},
		{"scan", (*session).scan}, {"script", (*session).script}, {"errors", (*session).errors},
	}
}

// A session is a client and what one check found wrong with it.
type session struct {
	*redis.Client
	ctx     context.Context
	options *redis.Options
	prefix  string
	errs    []error
}

// givenUp is thrown by a check that cannot go on.
type givenUp struct{}

func (t *session) attempt(run func(*session)) {
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(givenUp); !ok {
				panic(r)
			}
		}
	}()
	run(t)
}

func (t *session) fail(format string, args ...any) {
	t.errs = append(t.errs, fmt.Errorf(format, args...))
	panic(givenUp{})
}

func (t *session) key(name string) string { return t.prefix + ":" + name }

// ok takes what a command returns.
func (t *session) ok(err error) {
	if err != nil {
		t.fail("%w", err)
	}
}

// equal compares a command's value.
func equal[V any](t *session, got V, err error, want V) {
	if err != nil {
		t.fail("want %v: %w", want, err)
	}
	if !reflect.DeepEqual(got, want) {
		t.fail("got %v, want %v", got, want)
	}
}

func (t *session) none(err error) {
	if !errors.Is(err, redis.Nil) {
		t.fail("got error %v, want none and no value", err)
	}
}

func (t *session) refused(err error, text string) {
	if err == nil || !strings.Contains(err.Error(), text) {
		t.fail("got error %v, want %s", err, text)
	}
}

// with returns another client.
func (t *session) with(change func(*redis.Options)) *redis.Client {
	o := *t.options
	change(&o)
	return redis.NewClient(&o)
}

func (t *session) connect() {
	got, err := t.Ping(t.ctx).Result()
	equal(t, got, err, "PONG")
	got, err = t.Echo(t.ctx, "hello").Result()
	equal(t, got, err, "hello")
	named := t.with(func(o *redis.Options) { o.ClientName = "stock-client" })
	defer named.Close()
	got, err = named.ClientGetName(t.ctx).Result()
	equal(t, got, err, "stock-client")
	id, err := named.ClientID(t.ctx).Result()
	equal(t, id > 0, err, true)
	info, err := t.Info(t.ctx, "server").Result()
	equal(t, strings.Contains(info, "redis_version:"), err, true)
}

func (t *session) selectDB() {
	other := t.with(func(o *redis.Options) { o.DB = 1 })
	defer other.Close()
	t.ok(t.Set(t.ctx, t.key("db"), "0", 0).Err())
	t.none(other.Get(t.ctx, t.key("db")).Err())
	t.ok(other.Set(t.ctx, t.key("db"), "1", 0).Err())
	got, err := t.Get(t.ctx, t.key("db")).Result()
	equal(t, got, err, "0")
	got, err = other.Get(t.ctx, t.key("db")).Result()
	equal(t, got, err, "1")
}

func (t *session) strings() {
	k, number := t.key("string"), t.key("number")
	t.none(t.Get(t.ctx, k).Err())
	done, err := t.Do(t.ctx, "SET", k, "v", "NX").Result()
	equal(t, done, err, any("OK"))
	t.none(t.Do(t.ctx, "SET", k, "w", "NX").Err())
	got, err := t.SetArgs(t.ctx, k, "w", redis.SetArgs{Get: true}).Result()
	equal(t, got, err, "v")
	n, err := t.Append(t.ctx, k, "xyz").Result()
	equal(t, n, err, 4)
	got, err = t.GetRange(t.ctx, k, 1, 2).Result()
	equal(t, got, err, "xy")
	n, err = t.IncrBy(t.ctx, number, 41).Result()
	equal(t, n, err, 41)
	f, err := t.IncrByFloat(t.ctx, number, 0.5).Result()
	equal(t, f, err, 41.5)
	got, err = t.MSet(t.ctx, t.key("m1"), 1, t.key("m2"), 2).Result()
	equal(t, got, err, "OK")
	all, err := t.MGet(t.ctx, t.key("m1"), t.key("missing"), t.key("m2")).Result()
	equal(t, all, err, []any{"1", nil, "2"})
	n, err = t.Exists(t.ctx, t.key("m1"), t.key("m2"), t.key("missing")).Result()
	equal(t, n, err, 2)
	n, err = t.Del(t.ctx, t.key("m1"), t.key("m2"), t.key("missing")).Result()
	equal(t, n, err, 2)
	got, err = t.Type(t.ctx, k).Result()
	equal(t, got, err, "string")
}

func (t *session) binary() {
	var every []byte
	for i := range 256 {
		every = append(every, byte(i))
	}
	every = append(every, "\r\n$-1\r\n*3\r\n"...)
	k := t.key("b") + string(every)
	t.ok(t.Set(t.ctx, k, every, 0).Err())
	got, err := t.Get(t.ctx, k).Bytes()
	equal(t, got, err, every)
	large := slices.Repeat(every, 5000)
	t.ok(t.Set(t.ctx, t.key("large"), large, 0).Err())
	got, err = t.Get(t.ctx, t.key("large")).Bytes()
	equal(t, len(got), err, len(large))
	equal(t, slices.Equal(got, large), nil, true)
	t.ok(t.Set(t.ctx, t.key("empty"), "", 0).Err())
	text, err := t.Get(t.ctx, t.key("empty")).Result()
	equal(t, text, err, "")
}

func (t *session) expiry() {
	k := t.key("expiry")
	t.ok(t.Set(t.ctx, k, "v", time.Minute).Err())
	left, err := t.PTTL(t.ctx, k).Result()
	equal(t, left > 50*time.Second && left <= time.Minute, err, true)
	done, err := t.Persist(t.ctx, k).Result()
	equal(t, done, err, true)
	left, err = t.TTL(t.ctx, k).Result()
	equal(t, left, err, -1)
	done, err = t.PExpire(t.ctx, k, 50*time.Millisecond).Result()
	equal(t, done, err, true)
	for {
		n, err := t.Exists(t.ctx, k).Result() // fails when the time of the check is over
		t.ok(err)
		if n == 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	left, err = t.TTL(t.ctx, k).Result()
	equal(t, left, err, -2)
}

func (t *session) hashes() {
	k := t.key("hash")
	n, err := t.HSet(t.ctx, k, "a", 1, "b", "two").Result()
	equal(t, n, err, 2)
	all, err := t.HGetAll(t.ctx, k).Result()
	equal(t, all, err, map[string]string{"a": "1", "b": "two"})
	some, err := t.HMGet(t.ctx, k, "a", "x").Result()
	equal(t, some, err, []any{"1", nil})
	n, err = t.HIncrBy(t.ctx, k, "a", 5).Result()
	equal(t, n, err, 6)
	n, err = t.HDel(t.ctx, k, "a", "x").Result()
	equal(t, n, err, 1)
	all, err = t.HGetAll(t.ctx, t.key("missing")).Result()
	equal(t, all, err, map[string]string{})
}

func (t *session) lists() {
	k := t.key("list")
	n, err := t.RPush(t.ctx, k, "a", "b", "c").Result()
	equal(t, n, err, 3)
	all, err := t.LRange(t.ctx, k, 0, -1).Result()
	equal(t, all, err, []string{"a", "b", "c"})
	one, err := t.LPop(t.ctx, k).Result()
	equal(t, one, err, "a")
	all, err = t.RPopCount(t.ctx, k, 5).Result()
	equal(t, all, err, []string{"c", "b"})
	t.none(t.LPop(t.ctx, k).Err())
	t.none(t.LPopCount(t.ctx, k, 2).Err())
}

func (t *session) sets() {
	k := t.key("set")
	n, err := t.SAdd(t.ctx, k, "a", "b", "c").Result()
	equal(t, n, err, 3)
	all, err := t.SMembersMap(t.ctx, k).Result()
	equal(t, all, err, map[string]struct{}{"a": {}, "b": {}, "c": {}})
	is, err := t.SMIsMember(t.ctx, k, "a", "x").Result()
	equal(t, is, err, []bool{true, false})
	popped, err := t.SPop(t.ctx, k).Result()
	t.ok(err)
	n, err = t.SCard(t.ctx, k).Result()
	equal(t, n, err, 2)
	there, err := t.SIsMember(t.ctx, k, popped).Result()
	equal(t, there, err, false)
}

func (t *session) sortedSets() {
	k := t.key("zset")
	want := []redis.Z{{Score: 1, Member: "a"}, {Score: 2.5, Member: "b"}, {Score: math.Inf(1), Member: "c"}}
	n, err := t.ZAdd(t.ctx, k, want...).Result()
	equal(t, n, err, 3)
	all, err := t.ZRangeWithScores(t.ctx, k, 0, -1).Result()
	equal(t, all, err, want)
	f, err := t.ZScore(t.ctx, k, "b").Result()
	equal(t, f, err, 2.5)
	t.none(t.ZScore(t.ctx, k, "x").Err())
	f, err = t.ZIncrBy(t.ctx, k, 1, "a").Result()
	equal(t, f, err, 2)
	some, err := t.ZRangeArgs(t.ctx, redis.ZRangeArgs{Key: k, Start: 2, Stop: 3, ByScore: true}).Result()
	equal(t, some, err, []string{"a", "b"})
	n, err = t.ZRank(t.ctx, k, "c").Result()
	equal(t, n, err, 2)
}

func (t *session) streams() {
	k := t.key("stream")
	first, err := t.XAdd(t.ctx, &redis.XAddArgs{Stream: k, Values: []any{"n", 1}}).Result()
	t.ok(err)
	second, err := t.XAdd(t.ctx, &redis.XAddArgs{Stream: k, Values: []any{"n", 2}}).Result()
	t.ok(err)
	want := []redis.XMessage{{ID: first, Values: map[string]any{"n": "1"}}, {ID: second, Values: map[string]any{"n": "2"}}}
	all, err := t.XRange(t.ctx, k, "-", "+").Result()
	equal(t, all, err, want)
	n, err := t.XLen(t.ctx, k).Result()
	equal(t, n, err, 2)
	t.ok(t.XGroupCreate(t.ctx, k, "g", "0").Err())
	got, err := t.XReadGroup(t.ctx, &redis.XReadGroupArgs{Group: "g", Consumer: "c", Streams: []string{k, ">"}, Count: 1, Block: -1}).Result()
	equal(t, got, err, []redis.XStream{{Stream: k, Messages: want[:1]}})
	n, err = t.XAck(t.ctx, k, "g", first).Result()
	equal(t, n, err, 1)
}

func (t *session) pipeline() {
	k := t.key("pipeline")
	pipe := t.Pipeline()
	var got []*redis.StringCmd
	var wrong *redis.IntCmd
	for i := range 1000 {
		pipe.Set(t.ctx, fmt.Sprint(k, ":", i), i, 0)
		got = append(got, pipe.Get(t.ctx, fmt.Sprint(k, ":", i)))
		if i == 500 {
			wrong = pipe.LPush(t.ctx, fmt.Sprint(k, ":", i), "wrong type")
		}
	}
	_, err := pipe.Exec(t.ctx)
	t.refused(err, "WRONGTYPE")
	t.refused(wrong.Err(), "WRONGTYPE")
	for i, cmd := range got {
		n, err := cmd.Int()
		equal(t, n, err, i)
	}
}

func (t *session) transaction() {
	k := t.key("transaction")
	var get *redis.StringCmd
	_, err := t.TxPipelined(t.ctx, func(p redis.Pipeliner) error {
		p.Set(t.ctx, k, 1, 0)
		p.Incr(t.ctx, k)
		get = p.Get(t.ctx, k)
		return nil
	})
	equal(t, get.Val(), err, "2")
	var before, after, wrong *redis.IntCmd
	_, err = t.TxPipelined(t.ctx, func(p redis.Pipeliner) error {
		before, wrong, after = p.Incr(t.ctx, k), p.LPush(t.ctx, k, "x"), p.Incr(t.ctx, k)
		return nil
	})
	t.refused(err, "WRONGTYPE")
	t.refused(wrong.Err(), "WRONGTYPE")
	equal(t, before.Val(), before.Err(), 3)
	equal(t, after.Val(), after.Err(), 4)
	_, err = t.TxPipelined(t.ctx, func(p redis.Pipeliner) error {
		p.Set(t.ctx, k, "lost", 0)
		p.Do(t.ctx, "NO-SUCH-COMMAND")
		return nil
	})
	t.refused(err, "EXECABORT")
	got, err := t.Get(t.ctx, k).Result()
	equal(t, got, err, "4")
}

func (t *session) watch() {
	k := t.key("watch")
	t.ok(t.Set(t.ctx, k, 1, 0).Err())
	set := func(tx *redis.Tx, n int) error {
		_, err := tx.TxPipelined(t.ctx, func(p redis.Pipeliner) error { return p.Set(t.ctx, k, n, 0).Err() })
		return err
	}
	err := t.Watch(t.ctx, func(tx *redis.Tx) error {
		t.ok(t.Set(t.ctx, k, 10, 0).Err())
		return set(tx, 2)
	}, k)
	if !errors.Is(err, redis.TxFailedErr) {
		t.fail("EXEC of a key that had changed: %v", err)
	}
	t.ok(t.Watch(t.ctx, func(tx *redis.Tx) error {
		n, err := tx.Get(t.ctx, k).Int()
		t.ok(err)
		return set(tx, n+1)
	}, k))
	got, err := t.Get(t.ctx, k).Result()
	equal(t, got, err, "11")
}

func (t *session) blocking() {
	k := t.key("{blocking}")
	type popped struct {
		pair []string
		err  error
	}
	done := make(chan popped, 1)
	go func() {
		pair, err := t.BLPop(t.ctx, patience, k, t.key("{blocking}:other")).Result()
		done <- popped{pair, err}
	}()
	time.Sleep(100 * time.Millisecond) // most likely the push finds the client waiting
	t.ok(t.RPush(t.ctx, k, "pushed").Err())
	got := <-done
	equal(t, got.pair, got.err, []string{k, "pushed"})
	t.none(t.Do(t.ctx, "BLPOP", k, "0.05").Err())
	t.ok(t.RPush(t.ctx, k, "there").Err())
	pair, err := t.BRPop(t.ctx, time.Second, k).Result()
	equal(t, pair, err, []string{k, "there"})
	t.ok(t.RPush(t.ctx, k, "moved").Err())
	one, err := t.BLMove(t.ctx, k, t.key("{blocking}:moved"), "LEFT", "RIGHT", time.Second).Result()
	equal(t, one, err, "moved")
	t.ok(t.ZAdd(t.ctx, t.key("{blocking}:bz"), redis.Z{Score: 1.5, Member: "a"}).Err())
	z, err := t.BZPopMin(t.ctx, time.Second, t.key("{blocking}:bz")).Result()
	equal(t, *z, err, redis.ZWithKey{Key: t.key("{blocking}:bz"), Z: redis.Z{Score: 1.5, Member: "a"}})
}

func (t *session) pubsub() {
	channel := t.key("channel")
	p := t.Subscribe(t.ctx, channel)
	defer p.Close()
	next := func() any {
		m, err := p.ReceiveTimeout(t.ctx, patience)
		t.ok(err)
		return m
	}
	confirmed := func(kind, channel string, count int) {
		equal(t, next(), nil, any(&redis.Subscription{Kind: kind, Channel: channel, Count: count}))
	}
	confirmed("subscribe", channel, 1)
	t.ok(p.PSubscribe(t.ctx, channel+"*"))
	confirmed("psubscribe", channel+"*", 2)
	n, err := t.Publish(t.ctx, channel, "news").Result()
	equal(t, n, err, 2)
	equal(t, next(), nil, any(&redis.Message{Channel: channel, Payload: "news"}))
	equal(t, next(), nil, any(&redis.Message{Channel: channel, Pattern: channel + "*", Payload: "news"}))
	t.ok(p.Unsubscribe(t.ctx, channel))
	confirmed("unsubscribe", channel, 1)
	n, err = t.Publish(t.ctx, channel, "more").Result()
	equal(t, n, err, 1)
	equal(t, next(), nil, any(&redis.Message{Channel: channel, Pattern: channel + "*", Payload: "more"}))
}

func (t *session) scan() {
	want := map[string]bool{}
	pipe := t.Pipeline()
	for i := range 300 {
		k := t.key("scan:" + strconv.Itoa(i))
		want[k] = true
		pipe.Set(t.ctx, k, 1, 0)
	}
	_, err := pipe.Exec(t.ctx)
	t.ok(err)
	collect := func(it *redis.ScanIterator) map[string]bool {
		got := map[string]bool{}
		for it.Next(t.ctx) {
			got[it.Val()] = true
		}
		t.ok(it.Err())
		return got
	}
	equal(t, collect(t.Scan(t.ctx, 0, t.key("scan:*"), 50).Iterator()), nil, want)
	keys, err := t.Keys(t.ctx, t.key("scan:1?")).Result()
	equal(t, len(keys), err, 10)
	var members []any
	for i := range 200 {
		member := "m" + strconv.Itoa(i)
		members = append(members, member)
		t.ok(t.HSet(t.ctx, t.key("scan-hash"), member, "v"+strconv.Itoa(i)).Err())
		t.ok(t.ZAdd(t.ctx, t.key("scan-zset"), redis.Z{Score: 0.5, Member: member}).Err())
	}
	t.ok(t.SAdd(t.ctx, t.key("scan-set"), members...).Err())
	equal(t, len(collect(t.HScan(t.ctx, t.key("scan-hash"), 0, "", 0).Iterator())), nil, 400)
	equal(t, len(collect(t.SScan(t.ctx, t.key("scan-set"), 0, "", 0).Iterator())), nil, 200)
	equal(t, len(collect(t.ZScan(t.ctx, t.key("scan-zset"), 0, "", 0).Iterator())), nil, 201) // the score is one of them
}

func (t *session) script() {
	k := t.key("script")
	const body = "redis.call('SET', KEYS[1], ARGV[1]); return {redis.call('GET', KEYS[1]), 7, false}"
	got, err := t.Eval(t.ctx, body, []string{k}, "by a script").Result()
	equal(t, got, err, any([]any{"by a script", int64(7), nil}))
	text, err := t.Get(t.ctx, k).Result()
	equal(t, text, err, "by a script")
	script := redis.NewScript("return redis.call('INCRBY', KEYS[1], ARGV[1])")
	for _, want := range []int{5, 10} {
		n, err := script.Run(t.ctx, t.Client, []string{t.key("script-n")}, 5).Int()
		equal(t, n, err, want)
	}
	t.refused(t.EvalSha(t.ctx, strings.Repeat("0", 40), nil).Err(), "NOSCRIPT")
	t.refused(t.Eval(t.ctx, "return redis.error_reply('OWN own error')", nil).Err(), "OWN own error")
}

func (t *session) errors() {
	k := t.key("errors")
	t.ok(t.Set(t.ctx, k, "text", 0).Err())
	t.refused(t.LPush(t.ctx, k, 1).Err(), "WRONGTYPE Operation against a key holding the wrong kind of value")
	t.refused(t.Incr(t.ctx, k).Err(), "ERR value is not an integer or out of range")
	t.refused(t.Do(t.ctx, "GET").Err(), "ERR wrong number of arguments for 'get' command")
	t.refused(t.Do(t.ctx, "NO-SUCH-COMMAND", "x").Err(), "ERR unknown command 'NO-SUCH-COMMAND', with args beginning with: 'x'")
	t.refused(t.Do(t.ctx, "SET", k, "v", "BAD").Err(), "ERR syntax error")
	t.refused(t.Do(t.ctx, "EXEC").Err(), "ERR EXEC without MULTI")
	got, err := t.Get(t.ctx, k).Result()
	equal(t, got, err, "text")
}
