package proxy

import (
	"bytes"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// In front of a Redis Cluster a client's ordinary commands go by the connections that clients share.
// It has connections of its own besides, for what Redis keeps for a connection: subscriptions, WATCH
// and a command that blocks.

// ownConnections are a client's own connections in front of a Redis Cluster.
type ownConnections struct {
	channels *backend // SUBSCRIBE and PSUBSCRIBE
	shards   shardConnections
	watch    *backend // WATCH. It stays for the next one
	watched  int      // the slot of the watched keys
	blocking *backend // of commands that block in Redis. It stays for the next one
	blockID  []byte   // Redis' id of blocking; nil: not known yet
	running  *ownCommand
}

// inFront returns the client's own connections in front of a Redis Cluster.
func (c *client) inFront() *ownConnections {
	if c.own == nil {
		c.own = &ownConnections{shards: shardConnections{map[string]*backend{}, map[string]*backend{}}}
	}
	return c.own
}

// all returns the connections that exist.
func (o *ownConnections) all() []*backend {
	if o == nil {
		return nil
	}
	var all []*backend
	for _, b := range []*backend{o.channels, o.watch, o.blocking} {
		if b != nil {
			all = append(all, b)
		}
	}
	for _, b := range o.shards.byPrimary {
		all = append(all, b)
	}
	return all
}

// discard ends all of them for good.
func (o *ownConnections) discard() {
	for _, b := range o.all() {
		b.discard()
	}
}

// openOwn opens a connection of the client's own to a primary.
func (c *client) openOwn(address string, proto int) *backend {
	b := newBackend(c.loop, c.loop.cfg.Backend.DB, proto)
	b.owner, b.primary = c, address
	c.loop.dedicated[b] = struct{}{}
	b.connect()
	return b
}

// reuse returns b if it leads to that primary in the client's protocol, else a new connection. It
// ends b then. onEnd is as in backend.
func (c *client) reuse(b *backend, address string, onEnd func(*backend)) (reused *backend, isNew bool) {
	if b != nil {
		if b.primary == address && b.proto == c.proto && b.state != discarded {
			return b, false
		}
		b.discard()
	}
	b = c.openOwn(address, c.proto)
	b.onEnd = func() { onEnd(b) }
	return b, true
}

// disconnect closes the client once it has its replies: what Redis kept for one of its connections
// is lost, and the client is to notice.
func (c *client) disconnect() {
	if c.blockingInRedis > 0 {
		c.close() // its reply may never come
		return
	}
	c.closeAfterReplies()
}

// ownCommand is a client's command on one of its own connections. It begins when no reply is pending,
// and the client's next command waits until it has ended: so the order of commands does not depend
// on the connections that they go by, and no message precedes the reply to an earlier command.
type ownCommand struct {
	c       *client
	order   *ordered
	slot    int
	asks    bool // it may run behind ASKING
	repeats bool // it may be sent twice
	// send sends it to a primary, and sets b.
	send func(o *ownCommand, address string, asking bool)
	// broken, if not nil, is called instead of a further try, if Redis has not run the command where
	// it had to, or its connection is lost.
	broken func(o *ownCommand)
	ended  func()        // if not nil, is called before the answer
	marked *replyHandler // of a command of subscriptions

	b         *backend // that it was sent on
	redirects int
	sentAt    time.Time
	since     time.Time // when it first had to wait for the cluster
}

// runOwn runs a command on an own connection, on the primary of its slot. It returns false if the
// client has to wait.
func (c *client) runOwn(o *ownCommand) bool {
	if c.outstanding > 0 {
		return false
	}
	c.slotsAt = c.loop.slotsAt
	o.c, o.order = c, c.replies.add()
	o.order.parts = 1
	c.outstanding++
	c.inFront().running = o
	o.try(c.loop.primaryOf(o.slot, 2).primary, false)
	return true
}

func (o *ownCommand) try(address string, asking bool) {
	o.c.busy, o.sentAt = true, o.c.loop.now
	o.send(o, address, asking)
}

// end answers the command, and lets the next one begin.
func (o *ownCommand) end(reply []byte) {
	c := o.c
	if c.closed {
		return
	}
	c.own.running = nil
	if o.ended != nil {
		o.ended()
	}
	c.commandDone()
	c.replies.current = o.order
	c.deliver(reply)
	c.replyDone()
	c.partDone(o.order)
}

// arrived handles a reply that may redirect the command.
func (o *ownCommand) arrived(reply []byte) {
	to, redirects := redirectionOf(reply, o.b.primary)
	switch {
	case !redirects:
		o.end(reply)
	case o.broken != nil:
		o.c.loop.cfg.Cluster.Refresh()
		o.broken(o)
	default:
		o.follow(to, bytes.Clone(reply))
	}
}

// follow sends the command to another primary, or again after a pause. reply answers the client if
// it may not wait longer.
func (o *ownCommand) follow(to redirection, reply []byte) {
	l := o.c.loop
	l.cfg.Cluster.Refresh()
	if l.now.Sub(o.sentAt) > time.Second { // it has blocked since: this is another change of the cluster
		o.redirects, o.since = 0, time.Time{}
	}
	if to.address != "" && (o.asks || !to.asking) && o.redirects < maxRedirects {
		o.redirects++
		o.try(to.address, to.asking)
		return
	}
	if o.since.IsZero() {
		o.since = l.now
	}
	o.b = nil
	if o.c.waitForCluster(o.since, func() { o.try(l.primaryOf(o.slot, 2).primary, false) }) {
		return
	}
	if to.address != "" { // clients know of no cluster
		reply = resp.AppendError(nil, errMoving)
	}
	o.end(reply)
}

// lost handles the end of the command's connection.
func (o *ownCommand) lost(sent bool) {
	switch {
	case o.c.closed:
	case o.broken != nil:
		o.broken(o)
	case sent && !o.repeats:
		o.c.loop.proxy.metrics.unknownOutcome.Inc()
		o.end(resp.AppendError(nil, errUnknownOutcome))
	case o.b.unreachable(): // it has waited for a connection
		o.end(resp.AppendError(nil, errPrimaryUnreachable))
	default:
		o.follow(redirection{}, resp.AppendError(nil, errPrimaryUnreachable))
	}
}

// ownChanged adapts the client's own connections to a new map.
func (c *client) ownChanged() {
	o, l := c.own, c.loop
	if r := o.running; r != nil && r.b != nil && r.b.state == connecting && l.primaryOf(r.slot, 2).primary != r.b.primary {
		r.b.discard() // nothing was sent yet
		r.try(l.primaryOf(r.slot, 2).primary, false)
	}
	if b := o.channels; b != nil && b.state == up && !l.isPrimary(b.primary) {
		b.lost(errNewPrimary)
	}
	if b := o.watch; b != nil && b.replies.n == 0 && !l.isPrimary(b.primary) {
		b.discard()
		o.watch = nil // a client that watches keys gets null for EXEC
	}
	if b := o.blocking; b != nil && b.replies.n == 0 && !l.isPrimary(b.primary) {
		b.discard()
		o.blocking = nil
	}
	if !c.closed {
		c.moveShards()
	}
}

// refuseTracking refuses CLIENT TRACKING and the commands for it.
func (c *client) refuseTracking(cmd *command.Command, r request.Request) bool {
	if cmd.Name == "client|tracking" && resp.EqualFold(r.Arg(2), "off") {
		c.reply([]byte(replyOK))
		return true
	}
	return c.refuse("ERR Sonic refuses '" + cmd.Name + "' in front of a Redis Cluster: invalidations come from each primary")
}
