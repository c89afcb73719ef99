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

// reopenInterval is how often a blocked client's command is tried while no Sonic has opened Redis.
const reopenInterval = 100 * time.Millisecond

// attempt is a blocking command as it is tried.
type attempt struct {
	n         int    // arguments
	arguments []byte // as bulk strings
	keys      []string
	wait      time.Duration // 0: for ever
}

// waiting is a blocking command of a client.
type waiting struct {
	c   *client
	cmd *command.Command
	try attempt

	timer   *timer
	retry   *timer
	tracked bool // Redis told the keys' state after it began to track them
	running bool // a try or a read of the keys is under way
	again   bool // a key changed meanwhile
	expired bool
	over    bool
}

// attemptOf reads a blocking command. ok is false when Redis refuses its timeout.
func attemptOf(cmd *command.Command, r request) (try attempt, ok bool) {
	at := r.len() - 1
	if cmd.Name == "blmpop" || cmd.Name == "bzmpop" {
		at = 1
	}
	if try.wait, ok = parseTimeout(string(r.arg(at))); !ok {
		return try, false
	}
	try.n = r.len() - 1
	try.arguments = slices.Clone(r.behind(1))
	source := cmd.Name == "blmove" || cmd.Name == "brpoplpush" // the other key is where the element goes
	cmd.Keys(r.raw, r.args, func(i int) bool {
		try.keys = append(try.keys, string(r.arg(i)))
		return !source
	})
	return try, true
}

// parseTimeout reads seconds as Redis does: 0 is for ever.
func parseTimeout(text string) (time.Duration, bool) {
	number := text
	if lower := strings.ToLower(text); strings.Contains(lower, "0x") && !strings.Contains(lower, "p") {
		number += "p0" // C needs no exponent
	}
	seconds, err := strconv.ParseFloat(number, 64)
	ms := math.Ceil(seconds * 1000)
	if err != nil || math.IsNaN(ms) || ms < 0 || ms > math.MaxInt64/2 || strings.Contains(text, "_") {
		return 0, false
	}
	return time.Duration(min(ms, float64(math.MaxInt64/int64(time.Millisecond)-1))) * time.Millisecond, true
}

// block runs a blocking command.
func (c *client) block(cmd *command.Command, r request) bool {
	try, ok := attemptOf(cmd, r)
	if !ok {
		return c.write(cmd, r) // Redis says what is wrong
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
	switch {
	case c.writable():
	case !c.l.p.writesHeld():
		w.end()
		c.replyError(c.l.p.noWrites())
		return
	case w.expired:
		w.running, w.again = false, true
		w.giveUp()
		return
	case c.gone():
		c.close()
		return
	default:
		w.running, w.again = false, true // who waits behind it is told when it gives up
		c.l.heldTries[w] = struct{}{}
		return
	}
	w.running, w.again = true, false
	mode := c.mode
	if c.l.cfg.Ack == AckPublished {
		mode = c.modeWith("p")
	}
	b.send(pending{client: c, kind: handled, then: &handling{each: w.tried, lost: func(sent bool) {
		w.end()
		c.lostCommand(sent)
	}}}, c.l.p.appendCall(nil, w.cmd, mode, w.try.n, w.try.arguments))
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
	if w.tracked && isNotOpened(reply) && !w.over && !w.expired && !c.gone() {
		// This Redis has begun anew, and nothing tells when a Sonic has opened it.
		w.running = true
		w.retry = c.l.timers.start(c.l.now.Add(reopenInterval), w.track)
		return
	}
	reply = c.l.p.mend(w.cmd, false, reply, c.proto)
	// Like Redis, who waits already does not mind a key of another type that comes.
	wrongType := w.tracked && strings.HasPrefix(string(reply), "-WRONGTYPE")
	if !isNull(reply) && !wrongType {
		w.end()
		c.deliverPublished(id, reply)
		return
	}
	switch {
	case w.over:
	case w.expired:
		w.giveUp()
	case c.l.draining, c.gone():
		c.close()
	case !w.tracked || w.again:
		w.track()
	case wrongType:
		c.l.watcherOf(c.db).passOn(w)
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
		c.last = c.l.now // it was not idle
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
	l.timers.stop(w.retry)
	delete(l.heldTries, w)
	if w.tracked {
		l.watcherOf(w.c.db).forget(w, w.running || w.again)
	}
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
		lost: func(bool) {
			one.running = false // began tracks it again
			switch {
			case one.over:
			case one.expired:
				one.giveUp()
			case one.c.gone():
				one.c.close()
			}
		},
	}}, resp.AppendCommand(nil, append([]string{"EXISTS"}, one.try.keys...)...))
}

// passOn tells those behind one who cannot use what came, as it is of another type.
func (w *watcher) passOn(one *waiting) {
	for _, key := range one.try.keys {
		all := w.waiting[key]
		if i := slices.Index(all, one); i >= 0 && i+1 < len(all) {
			all[i+1].changed()
		}
	}
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
