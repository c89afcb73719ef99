package sonic

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/aviaryhq/aviary/test/e2e/sonic/commands"
)

// outcomeOf is what an error of a client says about the command.
func outcomeOf(err error) outcome {
	var said redis.Error
	switch {
	case err == nil || errors.Is(err, redis.Nil):
		return acknowledged
	case errors.As(err, &said) && !strings.Contains(err.Error(), "is unknown"):
		return refused
	default:
		return unknown
	}
}

// write starts all writers.
func (w *randomRun) write() {
	w.stop = make(chan struct{})
	w.generation++
	for _, s := range w.sites {
		for n := range 3 {
			w.writer(s, n, func(c *connection) { c.anything() })
		}
		w.writer(s, 10, func(c *connection) { c.count() })
		w.writer(s, 11, func(c *connection) { c.once() })
		w.writer(s, 12, func(c *connection) { c.readOwn() })
	}
}

// pause has all writers wait, and returns when they do.
func (w *randomRun) pause() {
	w.gate.Lock()
	w.paused = true
}

// resume lets them go on.
func (w *randomRun) resume() {
	w.paused = false
	w.gate.Unlock()
}

// stopWriters ends them, if there are any.
func (w *randomRun) stopWriters() {
	if w.stop == nil {
		return
	}
	if w.paused {
		w.resume()
	}
	close(w.stop)
	w.stop = nil
	w.writers.Wait()
	w.event("writers have ended")
}

// A connection is that of one writer: to one of its zone's Sonics, and to another one once it
// breaks.
type connection struct {
	*randomRun
	site    *site
	r       *rand.Rand
	words   commands.Words
	tag     string          // of the keys that the words name
	used    map[string]bool // keys that the words named
	clients [maxDatabases]*redis.Client
	n       int // of what this writer did

	own   string // the key that only this connection writes
	value int    // what it holds
}

// writer runs act again and again.
func (w *randomRun) writer(s *site, number int, act func(*connection)) {
	r := rand.New(rand.NewPCG(w.seed, uint64(1+w.generation*10_000+s.index*100+number)))
	c := &connection{randomRun: w, site: s, r: r, used: map[string]bool{}}
	c.words = commands.Words{Rand: r, Keys: func() string {
		key := "k" + strconv.Itoa(r.IntN(5))
		if r.IntN(6) == 0 {
			key = fmt.Sprintf("none:%s:%d", s.name, r.IntN(3))
		}
		if r.IntN(20) == 0 {
			c.another() // refused in front of a Redis Cluster, mostly
		}
		key += c.tag
		c.used[key] = true
		return key
	}}
	c.fresh()
	stop := w.stop
	w.writers.Go(func() {
		defer c.close()
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Duration(r.Int64N(int64(w.pace())))): // the rate of attempts
			}
			w.gate.RLock()
			act(c)
			w.gate.RUnlock()
		}
	})
}

func (c *connection) close() {
	for i, client := range c.clients {
		if client != nil {
			_ = client.Close()
			c.clients[i] = nil
		}
	}
}

// client is the one of a database.
func (c *connection) client(db int) *redis.Client {
	if c.clients[db] == nil {
		e := c.site.sonics[c.r.IntN(len(c.site.sonics))]
		c.clients[db] = e.clientNow(db, 2+c.r.IntN(2))
	}
	return c.clients[db]
}

// done looks at what became of commands: behind one whose outcome is not known the connection is
// another.
func (c *connection) done(errs ...error) {
	if slices.ContainsFunc(errs, func(err error) bool { return outcomeOf(err) == unknown }) {
		c.close()
	}
	for _, err := range errs {
		if err != nil && strings.Contains(err.Error(), "user_function") {
			c.t.Errorf("the library fails: %v", err)
		}
	}
}

func args(words []string) []any {
	all := make([]any, len(words))
	for i, word := range words {
		all[i] = word
	}
	return all
}

// anything sends some random commands: one by one, in a pipeline, or in a transaction.
func (c *connection) anything() {
	clear(c.used)
	var batch [][]string
	tx := c.r.IntN(6) == 0
	c.another()
	for range 1 + c.r.IntN(10) {
		batch = append(batch, c.word(tx))
	}
	db := min(c.r.IntN(6)/5, c.randomRun.databases()-1) // mostly 0
	client := c.client(db)
	ctx := context.Background()
	errs := make([]error, len(batch))
	how := ""
	switch {
	case tx:
		how = fmt.Sprintf(" transaction %d", c.n)
		c.n++
		pipe := client.TxPipeline()
		var cmds []redis.Cmder
		for _, words := range batch {
			cmds = append(cmds, pipe.Do(ctx, args(words)...))
		}
		_, err := pipe.Exec(ctx)
		for i, cmd := range cmds {
			errs[i] = cmd.Err()
			if errs[i] == nil && err != nil && outcomeOf(err) == unknown {
				errs[i] = err
			}
		}
	case c.r.IntN(2) == 0:
		how = " pipeline"
		pipe := client.Pipeline()
		var cmds []redis.Cmder
		for _, words := range batch {
			cmds = append(cmds, pipe.Do(ctx, args(words)...))
		}
		_, _ = pipe.Exec(ctx) // each has its own
		for i, cmd := range cmds {
			errs[i] = cmd.Err()
		}
	default:
		for i, words := range batch {
			errs[i] = client.Do(ctx, args(words)...).Err()
		}
	}
	c.ledger.sent(c.site.name, db, how, batch, errs, c.used)
	c.done(errs...)
}

// word returns a random write that is replicated.
func (c *connection) word(tx bool) []string {
	for {
		words := c.words.Write()
		if c.r.IntN(4) == 0 {
			words = c.words.Chance()
		}
		switch words[0] {
		case "xgroup", "xreadgroup", "xack":
			continue // groups are of one zone
		case "move", "copy":
			if c.randomRun.databases() == 1 {
				continue
			}
		case "eval":
			if tx {
				continue // refused
			}
		}
		return c.typed(words)
	}
}

// another chooses the tag of the next keys.
func (c *connection) another() string {
	c.tag = c.randomRun.tags[c.r.IntN(len(c.randomRun.tags))]
	return c.tag
}

// typed mostly has a command name keys of the type that it is for: otherwise most are refused.
func (c *connection) typed(words []string) []string {
	if c.r.IntN(8) == 0 {
		return words
	}
	kind := kindOf(words[0])
	if kind == "" {
		kind = []string{"-set", "-list", "-zset", "-hash", "-stream", "-string"}[c.r.IntN(6)]
	}
	for i, word := range words[1:] {
		if c.used[word] {
			words[i+1] = word + kind
			c.used[word+kind] = true
		}
	}
	return words
}

// kindOf is the type of the keys of a command; empty: any.
func kindOf(command string) string {
	for _, kind := range []struct{ name, commands string }{
		{"-set", "sadd srem spop smove sunionstore sinterstore sdiffstore"},
		{"-list", "lpush rpush lpushx rpushx lpop rpop lmpop lset linsert lrem ltrim lmove rpoplpush blpop brpop blmove blmpop sort"},
		{"-zset", "geoadd geosearchstore georadius bzpopmin bzpopmax bzmpop"},
		{"-hll", "pfadd pfmerge"},
		{"", "del unlink expire expireat pexpire pexpireat persist rename renamenx copy move eval"},
	} {
		if slices.Contains(strings.Fields(kind.commands), command) {
			return kind.name
		}
	}
	switch command[0] {
	case 'h':
		return "-hash"
	case 'z':
		return "-zset"
	case 'x':
		return "-stream"
	default:
		return "-string"
	}
}

// count increments a counter.
func (c *connection) count() {
	by := c.r.Int64N(9) - 2
	ctx := context.Background()
	client := c.client(0)
	n := c.r.IntN(3)
	tag := c.another()
	var name string
	var err error
	switch c.r.IntN(4) {
	case 0:
		name = fmt.Sprintf("count:h%s/%d", tag, n)
		err = client.HIncrBy(ctx, "count:h"+tag, strconv.Itoa(n), by).Err()
	case 1:
		name = fmt.Sprintf("count:z%s/%d", tag, n)
		err = client.ZIncrBy(ctx, "count:z"+tag, float64(by), strconv.Itoa(n)).Err()
	case 2:
		name, by = fmt.Sprintf("count:%d%s", n, tag), -by
		err = client.DecrBy(ctx, name, -by).Err()
	default:
		name = fmt.Sprintf("count:%d%s", n, tag)
		err = client.IncrBy(ctx, name, by).Err()
	}
	c.ledger.counted(name, by, outcomeOf(err))
	c.done(err)
}

// once writes something that is written once only.
func (c *connection) once() {
	c.n++
	id := fmt.Sprintf("%s-%d-%d", c.site.name, c.generation, c.n)
	ctx := context.Background()
	client := c.client(0)
	tag := c.another()
	var err error
	var what string
	switch c.n % 4 {
	case 0:
		what = "HSET once:h" + tag + " " + id
		err = client.HSet(ctx, "once:h"+tag, id, "1").Err()
	case 1:
		what = "SADD once:s" + tag + " " + id
		err = client.SAdd(ctx, "once:s"+tag, id).Err()
	default:
		what = "SET once:" + id + tag
		err = client.Set(ctx, "once:"+id+tag, id, 0).Err()
	}
	c.ledger.wrote(what, outcomeOf(err))
	c.done(err)
}

// fresh takes another key that only this connection writes.
func (c *connection) fresh() {
	c.n++
	c.own, c.value = fmt.Sprintf("own:%s:%d:%d%s", c.site.name, c.generation, c.n, c.another()), 0
}

// readOwn reads what this connection has written: by itself, and in the pipeline of the write.
func (c *connection) readOwn() {
	ctx := context.Background()
	client := c.client(0)
	pipe := client.Pipeline()
	set, get := pipe.Set(ctx, c.own, c.value+1, 0), pipe.Get(ctx, c.own)
	_, _ = pipe.Exec(ctx) // each has its own
	o := outcomeOf(set.Err())
	if o == acknowledged {
		c.value++
		c.ledger.holds(c.own, strconv.Itoa(c.value))
	}
	holds := func(get *redis.StringCmd) {
		if outcomeOf(get.Err()) != acknowledged {
			return
		}
		want := strconv.Itoa(c.value)
		if c.value == 0 {
			want = ""
		}
		if got := get.Val(); got != want {
			c.t.Errorf("zone %s: %s is %q, and its only writer was told that it is %q; the last SET: %v", c.site.name, c.own, got, want, set.Err())
		}
	}
	if o != unknown {
		holds(get)
		get = client.Get(ctx, c.own)
		holds(get)
	}
	if o == unknown { // it may still be executed
		c.ledger.holds(c.own, "")
		c.fresh()
	}
	c.done(set.Err(), get.Err())
}
