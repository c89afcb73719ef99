package proxy

import (
	"bytes"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// If Redis ran a blocking pop itself, it would do so outside a function, and no effect would be
// recorded. So the proxy blocks instead. It tries the pop as a function. If that finds nothing, the
// proxy reads the keys on a connection with CLIENT TRACKING, tries again, since an element may have
// arrived in between, and waits. Redis reports changes of the keys on that connection.

// reopenInterval is how often the proxy retries a blocked command while no Sonic has opened Redis.
const reopenInterval = 100 * time.Millisecond

// blockedCommand is a blocking command that a client waits for.
type blockedCommand struct {
	c         *client
	cmd       *command.Command
	n         int    // number of arguments
	arguments []byte // as bulk strings
	keys      []string
	slot      int         // in front of a Redis Cluster: of the keys
	at        *keyWatcher // where the command waits for its keys, nil before

	timer      *eventloop.Timer
	retryTimer *eventloop.Timer
	tracked    bool // Redis tracks the keys
	running    bool // a try or a read of the keys is in flight
	keyChanged bool // a key changed while running
	expired    bool
	ended      bool
}

// timeoutAt returns where the timeout of a command is that may block.
func timeoutAt(cmd *command.Command, r request.Request) int {
	switch cmd.Name {
	case "xread", "xreadgroup":
		_, at := command.Streams(r.Raw, r.Args)
		return at
	case "blmpop", "bzmpop":
		return 1
	}
	return r.Len() - 1
}

// parseTimeout reads a timeout in seconds as Redis does; 0 means without end.
func parseTimeout(text string) (time.Duration, bool) {
	number := text
	if lower := strings.ToLower(text); strings.Contains(lower, "0x") && !strings.Contains(lower, "p") {
		number += "p0" // C accepts hexadecimal numbers without an exponent, Go does not
	}
	seconds, err := strconv.ParseFloat(number, 64)
	ms := math.Ceil(seconds * 1000)
	if err != nil || math.IsNaN(ms) || ms < 0 || ms > math.MaxInt64/2 || strings.Contains(text, "_") {
		return 0, false
	}
	return time.Duration(min(ms, float64(math.MaxInt64/int64(time.Millisecond)-1))) * time.Millisecond, true
}

func (c *client) block(cmd *command.Command, r request.Request) bool {
	wait, ok := parseTimeout(string(r.Arg(timeoutAt(cmd, r))))
	if !ok {
		return c.write(cmd, r) // Redis returns the error
	}
	if !c.writable() {
		return c.delayOrRefuseWrite()
	}
	if c.outstanding > 0 {
		return false
	}
	c.useAnySlot()
	w := &blockedCommand{c: c, cmd: cmd, n: r.Len() - 1, arguments: slices.Clone(r.ArgsAfter(1)), slot: c.slot}
	source := cmd.Name == "blmove" || cmd.Name == "brpoplpush" // the second key is the destination
	cmd.Keys(r.Raw, r.Args, func(i int) bool {
		w.keys = append(w.keys, string(r.Arg(i)))
		return !source
	})
	c.blocked = w
	c.loop.blocked++
	if wait > 0 {
		w.timer = c.loop.timers.Start(c.loop.now.Add(wait), w.timeout)
	}
	w.tryPop()
	return true
}

func (w *blockedCommand) tryPop() {
	c := w.c
	c.slot = w.slot
	b, ok := c.connection()
	if !ok {
		return // impossible: no reply is pending, so connection never has to wait
	}
	switch {
	case c.writable():
	case !c.loop.proxy.writesDelayed():
		w.end()
		c.replyError(c.loop.proxy.writesRefusedError())
		return
	case w.expired:
		w.running, w.keyChanged = false, true
		w.replyTimeout()
		return
	case c.inputEnded():
		c.close()
		return
	default:
		w.running, w.keyChanged = false, true // so that cancel wakes the next waiting command
		c.loop.waitingBlocked[w] = struct{}{}
		return
	}
	w.running, w.keyChanged = true, false
	mode := c.mode
	if c.loop.cfg.AckPublished {
		mode = c.modeIn(c.db, "p")
	}
	b.send(pending{client: c, kind: handled, call: true, then: &replyHandler{onReply: w.handleReply, onLost: func(sent bool) {
		w.end()
		c.lostCommand(sent)
	}}}, c.loop.proxy.appendCall(nil, c.loop.proxy.functions[w.cmd.Index], w.slot, mode, w.n, w.arguments))
}

// handleReply handles the reply to a try.
func (w *blockedCommand) handleReply(reply []byte) {
	c := w.c
	w.running = false
	var id []byte
	if c.loop.cfg.AckPublished && reply[0] == '*' {
		if both := resp.Elements(reply); len(both) == 2 {
			id, reply = resp.Text(both[0]), both[1]
		}
	}
	_, moves := upstream.RedirectionOf(reply, "")
	if w.tracked && (replies.IsNotOpened(reply) || moves) && !w.ended && !w.expired && !c.inputEnded() {
		// Redis was restarted, or the slot moves for long. No notification comes when that ends, so
		// poll.
		w.running = true
		w.retryTimer = c.loop.timers.Start(c.loop.now.Add(reopenInterval), w.track)
		return
	}
	// As in Redis, a command that already waits ignores a key of the wrong type.
	wrongType := w.tracked && replies.IsWrongSource(reply)
	reply = replies.FromFunction(w.cmd, false, reply, c.proto)
	if !replies.IsNull(reply) && !wrongType {
		w.end()
		c.deliverPublished(id, reply)
		return
	}
	switch {
	case w.ended:
	case w.expired:
		w.replyTimeout()
	case c.loop.draining, c.inputEnded():
		c.close()
	case !w.tracked || w.keyChanged:
		w.track()
	case wrongType:
		w.at.wakeNext(w)
	}
}

// track makes Redis report changes of the keys, and then tries again.
func (w *blockedCommand) track() {
	w.running, w.keyChanged, w.tracked = true, false, true
	l := w.c.loop
	at := l.watcherOf(w.c.db, l.ownerOf(w.slot))
	if w.at != nil && w.at != at {
		w.at.remove(w, false)
	}
	w.at = at
	at.track(w)
}

// onKeyChange is called when a key may have got an element.
func (w *blockedCommand) onKeyChange() {
	if w.running {
		w.keyChanged = true
		return
	}
	w.track()
}

func (w *blockedCommand) timeout() {
	if w.running {
		w.expired = true // the try in flight may have popped an element
		return
	}
	w.replyTimeout()
}

func (w *blockedCommand) replyTimeout() {
	c := w.c
	w.end()
	c.deliver(nullArray(c.proto))
}

// end ends the command, and lets the client run its next one.
func (w *blockedCommand) end() {
	c := w.c
	w.cancel()
	if c.blocked == w {
		c.blocked = nil
		c.last = c.loop.now // waiting does not count as idle
		c.enqueue()
	}
}

// cancel removes the command. If a change of a key was meant for it, the next command that waits
// for the key gets the change.
func (w *blockedCommand) cancel() {
	if w.ended {
		return
	}
	w.ended = true
	l := w.c.loop
	l.blocked--
	l.timers.Stop(w.timer)
	l.timers.Stop(w.retryTimer)
	delete(l.waitingBlocked, w)
	if w.tracked {
		w.at.remove(w, w.running || w.keyChanged)
	}
}

// over ends a command that is not tried any more if its time is over or if its client sends no more. It
// reports whether it has.
func (w *blockedCommand) over() bool {
	switch {
	case w.expired:
		w.running = false
		w.replyTimeout()
	case w.c.inputEnded():
		w.running = false
		w.c.close()
	default:
		return false
	}
	return true
}

// keyWatcher receives notifications of changes of the keys that clients wait for in one db, of one
// primary of a Redis Cluster.
type keyWatcher struct {
	l *loop
	b *backend
	// commands lists the commands by key, in order of arrival, as in Redis.
	commands map[string][]*blockedCommand
}

func (l *loop) watcherOf(db int, primary string) *keyWatcher {
	key := sharedKey{db: db, proto: 3, primary: primary}
	w := l.watchers[key]
	if w == nil {
		w = &keyWatcher{l: l, b: newBackend(l, db, 3), commands: make(map[string][]*blockedCommand)}
		w.b.primary, w.b.onPush, w.b.onConnect = primary, w.invalidated, w.startTracking
		l.watchers[key] = w
		w.b.connect()
	}
	return w
}

// startTracking runs after each connect. Redis does not track keys for the new connection yet, and the
// keyWatcher may have missed changes.
func (w *keyWatcher) startTracking() {
	w.b.failAll() // reads of the keys, which must not precede the command
	w.b.send(discardReply(), resp.AppendCommand(nil, "CLIENT", "TRACKING", "ON"))
	var waiting []*blockedCommand // one whose slot has moved leaves commands
	for _, all := range w.commands {
		waiting = append(waiting, all...)
	}
	for _, one := range waiting {
		if !one.ended {
			one.onKeyChange()
		}
	}
}

// track reads the keys, so that Redis tracks them, and then tries the command.
func (w *keyWatcher) track(one *blockedCommand) {
	for _, key := range one.keys {
		if !slices.Contains(w.commands[key], one) {
			w.commands[key] = append(w.commands[key], one)
		}
	}
	w.b.send(pending{kind: handled, then: &replyHandler{
		onReply: func(reply []byte) {
			switch {
			case one.ended:
			case w.b.primary != "" && reply[0] == '-': // the slot moves, and nothing is tracked
				w.l.cfg.Cluster.Refresh()
				if !one.over() {
					one.retryTimer = w.l.timers.Start(w.l.now.Add(clusterPause), one.track)
				}
			default:
				one.tryPop()
			}
		},
		onLost: func(bool) {
			one.running = false // startTracking tracks the keys again
			if !one.ended {
				one.over()
			}
		},
	}}, resp.AppendCommand(nil, append([]string{"EXISTS"}, one.keys...)...))
}

// wakeNext wakes the next command that waits for the keys of one, which cannot use a key of the
// wrong type.
func (w *keyWatcher) wakeNext(one *blockedCommand) {
	for _, key := range one.keys {
		all := w.commands[key]
		if i := slices.Index(all, one); i >= 0 && i+1 < len(all) {
			all[i+1].onKeyChange()
		}
	}
}

func (w *keyWatcher) remove(one *blockedCommand, pass bool) {
	for _, key := range one.keys {
		i := slices.Index(w.commands[key], one)
		if i < 0 {
			continue
		}
		rest := slices.Delete(w.commands[key], i, i+1)
		if len(rest) == 0 {
			delete(w.commands, key)
			continue
		}
		w.commands[key] = rest
		if pass {
			rest[0].onKeyChange()
		}
	}
}

// invalidated handles an invalidation message of Redis. A null instead of keys means all keys.
func (w *keyWatcher) invalidated(push []byte) {
	if string(resp.FirstWord(push)) != "invalidate" {
		return
	}
	elements := resp.Elements(push)
	if len(elements) != 2 {
		return
	}
	keys := resp.Elements(elements[1])
	if keys == nil {
		for _, all := range w.commands {
			all[0].onKeyChange()
		}
		return
	}
	for _, key := range keys {
		if all := w.commands[string(resp.Text(key))]; len(all) > 0 {
			all[0].onKeyChange()
		}
	}
}

// moveWatchers makes commands that wait for keys wait at the primaries that have them now.
func (l *loop) moveWatchers() {
	var moved []*blockedCommand // those that wait for the same key in order of arrival
	for key, w := range l.watchers {
		gone := !l.isPrimary(key.primary)
		for _, all := range w.commands {
			for _, one := range all {
				if gone || l.slots.Owner(one.slot) != key.primary {
					moved = append(moved, one)
				}
			}
		}
		if gone {
			delete(l.watchers, key)
			w.b.failAll()
			w.b.discard()
		}
	}
	for _, one := range moved { // the second time for another key is harmless
		if !one.ended {
			one.onKeyChange()
		}
	}
}

// clientUnblock runs CLIENT UNBLOCK id [TIMEOUT|ERROR].
func (c *client) clientUnblock(_ *command.Command, r request.Request) bool {
	byError := false
	if r.Len() == 4 {
		switch {
		case resp.EqualFold(r.Arg(3), "error"):
			byError = true
		case !resp.EqualFold(r.Arg(3), "timeout"):
			return c.replyError("ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR")
		}
	}
	id, ok := resp.ParseInt(r.Arg(2))
	if !ok {
		return c.replyError("ERR value is not an integer or out of range")
	}
	other := c.loop.clients[uint64(id)]
	if c.loop.slots != nil && c.unblockInCluster(other, byError) {
		return true
	}
	if other == nil || other.blocked == nil || other.blocked.running {
		return c.reply(resp.AppendHeader(nil, ':', 0))
	}
	if byError {
		other.blocked.end()
		other.deliver(resp.AppendError(nil, "UNBLOCKED client unblocked via CLIENT UNBLOCK"))
	} else {
		other.blocked.replyTimeout()
	}
	return c.reply(resp.AppendHeader(nil, ':', 1))
}

// readStreams relays XREAD and XREADGROUP. A command that may block needs a connection of the
// client's own.
func (c *client) readStreams(cmd *command.Command, r request.Request) bool {
	if timeoutAt(cmd, r) == 0 {
		return c.relay(cmd, r)
	}
	if c.loop.slots != nil {
		return c.blockInCluster(cmd, r)
	}
	if !c.moveToDedicated() {
		return false
	}
	c.changeBlockingInRedis(1)
	ended := func() { c.changeBlockingInRedis(-1) }
	c.backend.send(pending{client: c, kind: handled, then: &replyHandler{
		onReply: func(reply []byte) { ended(); c.deliver(reply) },
		onLost:  func(sent bool) { ended(); c.lostCommand(sent) },
	}}, r.Raw)
	return true
}

// changeBlockingInRedis adds n to the number of commands that block in Redis itself.
func (c *client) changeBlockingInRedis(n int) {
	before := c.blockingInRedis > 0
	c.blockingInRedis += n
	switch now := c.blockingInRedis > 0; {
	case now && !before:
		c.loop.blocked++
	case before && !now:
		c.loop.blocked--
	}
}

// In front of a Redis Cluster blocking commands block in Redis, on a connection of the client's own.
// When their slot moves, Redis ends them with a redirection, and the proxy sends them to the next
// primary, with the time that is left. An XREAD from $ then waits for entries from that moment on.

// blockedInCluster is a command that blocks in Redis.
type blockedInCluster struct {
	r       request.Request
	timeout int // position of the argument, 0 if the proxy does not know it
	unit    time.Duration
	until   time.Time // zero: no end
	sent    bool      // it was sent before
}

func (c *client) blockInCluster(cmd *command.Command, r request.Request) bool {
	if c.outstanding > 0 {
		return false
	}
	w := &blockedInCluster{r: request.Request{Raw: bytes.Clone(r.Raw), Args: slices.Clone(r.Args)}}
	w.readTimeout(cmd, c.loop.now)
	c.changeBlockingInRedis(1)
	return c.runDedicated(&dedicatedCommand{
		slot: c.slot, asks: true, repeats: cmd.Name == "xread", send: w.send,
		ended: func() { c.changeBlockingInRedis(-1) },
	})
}

// readTimeout finds the timeout. Redis answers one that it cannot read with an error.
func (w *blockedInCluster) readTimeout(cmd *command.Command, now time.Time) {
	at, unit := timeoutAt(cmd, w.r), time.Second
	wait, ok := parseTimeout(string(w.r.Arg(at)))
	if cmd.Name == "xread" || cmd.Name == "xreadgroup" {
		unit = time.Millisecond
		wait /= 1000
	}
	if ok && wait > 0 && wait < longestBlock {
		w.timeout, w.unit, w.until = at, unit, now.Add(wait)
	}
}

// longestBlock is the longest timeout that the proxy counts. A longer one begins anew when the slot
// moves.
const longestBlock = 10 * 365 * 24 * time.Hour

func (w *blockedInCluster) send(o *dedicatedCommand, address string, asking bool) {
	c := o.c
	if w.sent && !w.shorten(c.loop.now) {
		o.end(nullArray(c.proto))
		return
	}
	w.sent = true
	c.connectTo(address, &c.dedicated.blocking)
	b := c.dedicated.blocking
	o.b, b.halfClosed = b, c.inputEnded()
	if asking {
		b.send(discardReply(), resp.AppendCommand(nil, "ASKING"))
	}
	b.send(pending{kind: handled, then: &replyHandler{
		onReply: func(reply []byte) { w.arrived(o, reply) }, onLost: o.lost,
	}}, w.r.Raw)
}

// halfCloseBlocking is called for a client that sends no more, while a command that may block is under
// way. It passes the end on to Redis, which serves a client that need not wait, and ends the
// connection of one that has to. It returns false if there is no such connection.
func (c *client) halfCloseBlocking() bool {
	if c.dedicated == nil || c.dedicated.running == nil || c.dedicated.running.b == nil || c.dedicated.running.b != c.dedicated.blocking {
		return false
	}
	if b := c.dedicated.blocking; !b.halfClosed {
		b.halfClosed = true
		b.scheduleFlush()
	}
	return true
}

func (w *blockedInCluster) arrived(o *dedicatedCommand, reply []byte) {
	if bytes.HasPrefix(reply, []byte("-UNBLOCKED ")) && !bytes.Contains(reply, []byte("CLIENT UNBLOCK")) {
		o.follow(upstream.Redirection{}, bytes.Clone(reply)) // the primary has become a replica
		return
	}
	o.arrived(reply)
}

// shorten sets the timeout to the time that is left. It returns false if none is.
func (w *blockedInCluster) shorten(now time.Time) bool {
	if w.timeout == 0 {
		return true
	}
	left := w.until.Sub(now).Truncate(time.Millisecond)
	if left <= 0 {
		return false
	}
	text := strconv.FormatInt(left.Milliseconds(), 10)
	if w.unit == time.Second {
		text = strconv.FormatFloat(left.Seconds(), 'f', 3, 64)
	}
	w.r = w.r.With(w.timeout, []byte(text))
	return true
}

// nullArray returns what Redis answers when a timeout is over, and when EXEC finds that a watched key
// has changed.
func nullArray(proto int) []byte {
	if proto == 3 {
		return []byte(replies.NullRESP3)
	}
	return []byte(replies.NullArray)
}

// unblockInCluster runs CLIENT UNBLOCK for a client that waits in Redis. It returns false if other
// does not.
func (c *client) unblockInCluster(other *client, byError bool) bool {
	if other == nil || other.dedicated == nil || other.blockingInRedis == 0 {
		return false
	}
	running := other.dedicated.running
	if running == nil || running.b == nil || running.b != other.dedicated.blocking || running.b.state != up {
		return false
	}
	reason := "TIMEOUT"
	if byError {
		reason = "ERROR"
	}
	c.slot = noSlot
	c.backend = c.loop.connectionTo(running.b.primary, 0, c.proto)
	c.backend.send(pending{client: c, kind: handled, then: &replyHandler{
		connectionBound: true, // only this primary knows the id
		onReply:         c.deliver,
		onLost:          func(bool) { c.deliver(resp.AppendHeader(nil, ':', 0)) },
	}}, resp.AppendCommand(nil, "CLIENT", "UNBLOCK", running.b.server.ClientID, reason))
	return true
}
