package proxy

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// Redis would run a blocking pop when an element comes, without a function: no effect would be noted. So the proxy waits
// in its place: it tries the pop as a function; finds nothing; reads the keys on a connection that tracks them; tries
// again, as something may have come in between; and waits. A change of the key is told by Redis, to that connection.

// attempt is the command that a blocking command tries.
type attempt struct {
	cmd       *command.Command
	n         int // arguments
	arguments []byte
	keys      []string
	wait      time.Duration // 0: for ever
}

// waiting is a blocking command of a client.
type waiting struct {
	c   *client
	cmd *command.Command
	try attempt

	timer   *timer
	tracked bool // Redis told the keys' state after it began to track them
	running bool // a try or a read of the keys is under way
	again   bool // a key changed meanwhile
	expired bool
	over    bool
}

// attemptOf turns a blocking command into the one that it tries. problem is the error of its arguments.
func (p *Proxy) attemptOf(cmd *command.Command, r request) (try attempt, problem string) {
	words := r.words(1)
	last := len(words) - 1
	timeout := words[last]
	popMany := func(name, side string) {
		try.keys = words[:last]
		words = append(append([]string{strconv.Itoa(last)}, words[:last]...), side)
		try.cmd = p.table.Lookup([]byte(name), nil)
	}
	switch cmd.Name {
	case "blpop":
		popMany("lmpop", "LEFT")
	case "brpop":
		popMany("lmpop", "RIGHT")
	case "bzpopmin":
		popMany("zmpop", "MIN")
	case "bzpopmax":
		popMany("zmpop", "MAX")
	case "blmpop", "bzmpop":
		timeout, words = words[0], words[1:]
		try.cmd = p.table.Lookup([]byte(cmd.Name[1:]), nil)
		if n, ok := resp.ParseInt([]byte(words[0])); ok && n > 0 && n < int64(len(words)) {
			try.keys = words[1 : 1+n]
		} else if !ok || n <= 0 {
			return try, "ERR numkeys should be greater than 0"
		}
	case "blmove":
		words = words[:last]
		try.cmd = p.table.Lookup([]byte("lmove"), nil)
		try.keys = words[:1]
		for _, side := range words[2:] {
			if !strings.EqualFold(side, "left") && !strings.EqualFold(side, "right") {
				return try, "ERR syntax error"
			}
		}
	case "brpoplpush":
		words = words[:last]
		try.cmd = p.table.Lookup([]byte("rpoplpush"), nil)
		try.keys = words[:1]
	}
	if try.wait, problem = parseTimeout(timeout); problem != "" {
		return try, problem
	}
	try.n = len(words)
	for _, word := range words {
		try.arguments = resp.AppendBulk(try.arguments, word)
	}
	try.keys = slices.Clone(try.keys)
	return try, ""
}

// parseTimeout reads seconds as Redis does: 0 is for ever.
func parseTimeout(text string) (time.Duration, string) {
	number := text
	if lower := strings.ToLower(text); strings.Contains(lower, "0x") && !strings.Contains(lower, "p") {
		number += "p0" // C needs no exponent
	}
	seconds, err := strconv.ParseFloat(number, 64)
	if err != nil && !math.IsInf(seconds, 0) || math.IsNaN(seconds) || strings.Contains(text, "_") {
		return 0, "ERR timeout is not a float or out of range"
	}
	ms := math.Ceil(seconds * 1000)
	if ms < 0 || ms > math.MaxInt64/2 { // more overflows in Redis
		return 0, "ERR timeout is negative"
	}
	return time.Duration(min(ms, float64(math.MaxInt64/int64(time.Millisecond)-1))) * time.Millisecond, ""
}

func (p *Proxy) appendAttempt(out []byte, try attempt, mode []byte) []byte {
	return p.appendCall(out, try.cmd, mode, try.n, try.arguments)
}

// block runs a blocking command.
func (c *client) block(cmd *command.Command, r request) bool {
	try, problem := c.l.p.attemptOf(cmd, r)
	if problem != "" {
		c.replyError(problem)
		return true
	}
	if !c.writable() {
		return c.refusedWrite()
	}
	if c.outstanding > 0 {
		return false
	}
	w := &waiting{c: c, cmd: cmd, try: try}
	c.wait = w
	if try.wait > 0 {
		w.timer = c.l.timers.start(c.l.now.Add(try.wait), w.timeout)
	}
	w.attempt()
	return true
}

// attempt tries the pop.
func (w *waiting) attempt() {
	c := w.c
	b, ok := c.home()
	if !ok {
		return // nothing is due: cannot be
	}
	w.running, w.again = true, false
	mode := c.mode
	if c.l.cfg.Ack == AckPublished {
		mode = c.modeWith("p")
	}
	b.send(pending{client: c, kind: handled, then: &handling{each: w.tried, lost: func(sent bool) {
		w.end()
		c.lostCommand(sent)
	}}}, c.l.p.appendAttempt(nil, w.try, mode))
}

// tried takes the reply of a try.
func (w *waiting) tried(reply []byte) {
	c := w.c
	w.running = false
	var id []byte
	if c.l.cfg.Ack == AckPublished && reply[0] == '*' {
		if both, err := resp.Elements(reply); err == nil && len(both) == 2 {
			id, reply = resp.Text(both[0]), both[1]
		}
	}
	reply = c.l.p.mend(w.try.cmd, false, reply, c.proto)
	// Like Redis, who waits already does not mind a key of another type that comes.
	wrongType := w.tracked && strings.HasPrefix(string(reply), "-WRONGTYPE")
	if !isNull(reply) && !wrongType {
		answer := mendAttempt(w.cmd, reply, c.proto, false)
		w.end()
		c.deliverPublished(id, answer)
		return
	}
	switch {
	case w.over:
	case w.expired:
		w.giveUp()
	case c.l.draining:
		c.close()
	case !w.tracked || w.again:
		w.track()
	}
}

// track has Redis tell of changes of the keys, and then tries again.
func (w *waiting) track() {
	w.running, w.again, w.tracked = true, false, true
	w.c.l.watcherOf(w.c.db).track(w)
}

// changed is called when a key may have got an element.
func (w *waiting) changed() {
	if w.running {
		w.again = true
		return
	}
	w.track()
}

func (w *waiting) timeout() {
	if w.running {
		w.expired = true // the try may have taken an element
		return
	}
	w.giveUp()
}

func (w *waiting) giveUp() {
	c := w.c
	w.end()
	if c.proto == 3 {
		c.deliver([]byte(null3))
		return
	}
	c.deliver([]byte(nullArray))
}

// end lets the client go on.
func (w *waiting) end() {
	c := w.c
	w.cancel()
	if c.wait == w {
		c.wait = nil
		c.enqueue()
	}
}

// cancel forgets the command. The next one that waits for its keys is given the change that this one may have had.
func (w *waiting) cancel() {
	if w.over {
		return
	}
	w.over = true
	l := w.c.l
	l.timers.stop(w.timer)
	if w.tracked {
		l.watcherOf(w.c.db).forget(w, w.running || w.again)
	}
}

// mendAttempt turns the reply of what was tried into that of the blocking command.
func mendAttempt(cmd *command.Command, reply []byte, proto int, inTransaction bool) []byte {
	if isNull(reply) {
		if inTransaction && proto == 2 && cmd.Name != "blmove" && cmd.Name != "brpoplpush" {
			return []byte(nullArray)
		}
		return reply
	}
	if reply[0] != '*' {
		return reply
	}
	switch cmd.Name {
	case "blpop", "brpop", "bzpopmin", "bzpopmax":
	default:
		return reply
	}
	parts, err := resp.Elements(reply)
	if err != nil || len(parts) != 2 {
		return reply
	}
	popped, err := resp.Elements(parts[1])
	if err != nil || len(popped) != 1 {
		return reply
	}
	values := popped
	if cmd.Name[1] == 'z' {
		if values, err = resp.Elements(popped[0]); err != nil {
			return reply
		}
	}
	out := resp.AppendHeader(nil, '*', 1+len(values))
	out = append(out, parts[0]...)
	for _, v := range values {
		out = append(out, v...)
	}
	return out
}

// watcher learns of changes of the keys of one db that clients wait for.
type watcher struct {
	l *loop
	b *backend
	// waiting by key, first come first served, as in Redis.
	waiting map[string][]*waiting
}

func (l *loop) watcherOf(db int) *watcher {
	w := l.watchers[db]
	if w == nil {
		w = &watcher{l: l, b: newBackend(l, db, 3), waiting: make(map[string][]*waiting)}
		w.b.pushed, w.b.began = w.invalidated, w.began
		l.watchers[db] = w
		w.b.connect()
	}
	return w
}

// began runs when a connection begins: Redis tracks nothing for it yet, and changes may have been missed.
func (w *watcher) began() {
	start := resp.AppendCommand(nil, "CLIENT", "TRACKING", "ON")
	// It must come before reads that were queued while there was no connection.
	w.b.prepend(pending{kind: handled, then: &handling{each: func([]byte) {}, lost: func(bool) {}}}, start)
	for _, all := range w.waiting {
		for _, one := range all {
			one.changed()
		}
	}
}

// track reads the keys, which begins to track them, and then has the command tried.
func (w *watcher) track(one *waiting) {
	for _, key := range one.try.keys {
		if !slices.Contains(w.waiting[key], one) {
			w.waiting[key] = append(w.waiting[key], one)
		}
	}
	next := func() {
		if !one.over {
			one.attempt()
		}
	}
	w.b.send(pending{kind: handled, then: &handling{
		each: func([]byte) { next() },
		lost: func(bool) { one.running = false }, // began tracks it again
	}}, resp.AppendCommand(nil, append([]string{"EXISTS"}, one.try.keys...)...))
}

func (w *watcher) forget(one *waiting, pass bool) {
	for _, key := range one.try.keys {
		i := slices.Index(w.waiting[key], one)
		if i < 0 {
			continue
		}
		rest := slices.Delete(w.waiting[key], i, i+1)
		if len(rest) == 0 {
			delete(w.waiting, key)
			continue
		}
		w.waiting[key] = rest
		if pass {
			rest[0].changed()
		}
	}
}

// invalidated takes Redis' word that keys have changed: null stands for all keys.
func (w *watcher) invalidated(push []byte) {
	if string(firstWord(push)) != "invalidate" {
		return
	}
	parts, err := resp.Elements(push)
	if err != nil || len(parts) != 2 {
		return
	}
	keys, err := resp.Elements(parts[1])
	if err != nil {
		return
	}
	if keys == nil {
		for _, all := range w.waiting {
			all[0].changed()
		}
		return
	}
	for _, key := range keys {
		if all := w.waiting[string(resp.Text(key))]; len(all) > 0 {
			all[0].changed()
		}
	}
}

// clientUnblock is CLIENT UNBLOCK id [TIMEOUT|ERROR], for clients of the same event loop.
func (c *client) clientUnblock(_ *command.Command, r request) bool {
	byError := false
	if r.len() == 4 {
		switch {
		case resp.EqualFold(r.arg(3), "error"):
			byError = true
		case !resp.EqualFold(r.arg(3), "timeout"):
			c.replyError("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
			return true
		}
	}
	id, ok := resp.ParseInt(r.arg(2))
	if !ok {
		c.replyError("ERR value is not an integer or out of range")
		return true
	}
	other := c.l.clients[uint64(id)]
	if other == nil || other.wait == nil || other.wait.running {
		c.reply(resp.AppendHeader(nil, ':', 0))
		return true
	}
	if byError {
		other.wait.end()
		other.deliver(resp.AppendError(nil, "UNBLOCKED client unblocked via CLIENT UNBLOCK"))
	} else {
		other.wait.giveUp()
	}
	c.reply(resp.AppendHeader(nil, ':', 1))
	return true
}
