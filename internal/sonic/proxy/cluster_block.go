package proxy

import (
	"bytes"
	"slices"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

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

// blockInCluster runs a command that may block.
func (c *client) blockInCluster(cmd *command.Command, r request.Request) bool {
	if c.outstanding > 0 {
		return false
	}
	w := &blockedInCluster{r: request.Request{Raw: bytes.Clone(r.Raw), Args: slices.Clone(r.Args)}}
	w.readTimeout(cmd, c.loop.now)
	c.changeBlockingInRedis(1)
	return c.runOwn(&ownCommand{
		slot: c.slot, asks: true, repeats: cmd.Name == "xread", send: w.send,
		ended: func() { c.changeBlockingInRedis(-1) },
	})
}

// readTimeout finds the timeout. Redis answers one that it cannot read with an error.
func (w *blockedInCluster) readTimeout(cmd *command.Command, now time.Time) {
	at, unit := w.r.Len()-1, time.Second
	switch cmd.Name {
	case "xread", "xreadgroup":
		at, unit = streamsTimeout(w.r), time.Millisecond
	case "blmpop", "bzmpop":
		at = 1
	}
	wait, ok := parseTimeout(string(w.r.Arg(at)))
	if unit == time.Millisecond {
		wait /= 1000
	}
	if ok && wait > 0 && wait < longestBlock {
		w.timeout, w.unit, w.until = at, unit, now.Add(wait)
	}
}

// longestBlock is the longest timeout that the proxy counts. A longer one begins anew when the slot
// moves.
const longestBlock = 10 * 365 * 24 * time.Hour

// streamsTimeout returns the position of the last argument of BLOCK, which is the one that counts.
func streamsTimeout(r request.Request) (at int) {
	for i := 1; i < r.Len(); i++ {
		switch word := r.Arg(i); {
		case resp.EqualFold(word, "block"):
			i++
			at = i
		case resp.EqualFold(word, "count"):
			i++
		case resp.EqualFold(word, "group"):
			i += 2
		case resp.EqualFold(word, "streams"):
			return at
		}
	}
	return at
}

func (w *blockedInCluster) send(o *ownCommand, address string, asking bool) {
	c := o.c
	if w.sent && !w.shorten(c.loop.now) {
		o.end(timedOut(c.proto))
		return
	}
	w.sent = true
	own := c.own
	b, isNew := c.reuse(own.blocking, address, func(b *backend) {
		if own.blocking == b {
			own.blocking = nil
		}
	})
	o.b, own.blocking = b, b
	if isNew {
		own.blockID = nil
		id := c.discardReply()
		id.then.onReply = func(reply []byte) { own.blockID = bytes.Clone(resp.Text(reply)) }
		b.send(id, resp.AppendCommand(nil, "CLIENT", "ID")) // for CLIENT UNBLOCK
	}
	if asking {
		b.send(c.discardReply(), resp.AppendCommand(nil, "ASKING"))
	}
	b.send(pending{kind: handled, then: &replyHandler{
		onReply: func(reply []byte) { w.arrived(o, reply) }, onLost: o.lost,
	}}, w.r.Raw)
}

// arrived handles the reply.
func (w *blockedInCluster) arrived(o *ownCommand, reply []byte) {
	if bytes.HasPrefix(reply, []byte("-UNBLOCKED ")) && !bytes.Contains(reply, []byte("CLIENT UNBLOCK")) {
		o.follow(redirection{}, bytes.Clone(reply)) // the primary has become a replica
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

// timedOut returns what Redis answers when the time is over.
func timedOut(proto int) []byte {
	if proto == 3 {
		return []byte(replies.NullRESP3)
	}
	return []byte(replies.NullArray)
}

// unblockInCluster runs CLIENT UNBLOCK for a client that waits in Redis. It returns false if other
// does not.
func (c *client) unblockInCluster(other *client, byError bool) bool {
	if other == nil || other.own == nil || other.blockingInRedis == 0 {
		return false
	}
	running, own := other.own.running, other.own
	if running == nil || running.b == nil || running.b != own.blocking || own.blockID == nil {
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
	}}, resp.AppendCommand(nil, "CLIENT", "UNBLOCK", string(own.blockID), reason))
	return true
}
