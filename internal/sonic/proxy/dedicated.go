package proxy

import (
	"bytes"
	"strconv"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// moveToDedicated moves the client to a connection of its own. It returns false while replies are
// pending on another one.
func (c *client) moveToDedicated() bool {
	if c.backend != nil && c.backend.owner == c && c.backend.state != discarded && c.backend != c.channels() {
		return true
	}
	if c.outstanding > 0 {
		return false
	}
	c.backend = c.openDedicated("", c.db, c.proto)
	c.backend.onPush, c.backend.onEnd = c.deliverPush, c.closeAfterReplies
	return true
}

// closeDedicated closes the client's own connection. No reply may be pending.
func (c *client) closeDedicated() {
	c.watch, c.subs = false, nil
	if c.backend != nil && c.backend.owner == c {
		b := c.backend
		c.backend = nil
		b.discard()
	}
	c.dedicated.discard()
	c.dedicated = nil
}

// changeDedicatedProtocol changes the protocol of the client's own connection. What Redis sends
// before it has processed HELLO reaches the client before the answer, in the old protocol.
func (c *client) changeDedicatedProtocol(proto int) bool {
	b := c.backend
	c.busy = true
	b.send(pending{client: c, kind: handled, then: &replyHandler{
		onReply: func([]byte) {
			b.proto, c.proto = proto, proto
			c.setMode()
			c.commandDone()
			c.deliver(c.greeting())
		},
		onLost: c.lostCommand,
	}}, resp.AppendCommand(nil, "HELLO", strconv.Itoa(proto)))
	return true
}

// tracking runs CLIENT TRACKING, TRACKINGINFO and CACHING. CLIENT TRACKING moves the client to a
// connection of its own. Invalidations are pushes of RESP3. With RESP2 they would need REDIRECT to
// another connection, whose id only Redis knows.
func (c *client) tracking(cmd *command.Command, r request.Request) bool {
	if cmd.Name == "client|tracking" {
		for i := 3; i < r.Len(); i++ {
			if resp.EqualFold(r.Arg(i), "redirect") {
				return c.replyError("ERR Sonic refuses 'client|tracking' with REDIRECT: use RESP3")
			}
		}
		if !c.moveToDedicated() {
			return false
		}
	}
	return c.relay(cmd, r)
}

func (c *client) refuseTracking(cmd *command.Command, r request.Request) bool {
	if cmd.Name == "client|tracking" && resp.EqualFold(r.Arg(2), "off") {
		return c.replyOK()
	}
	return c.refuse("ERR Sonic refuses '" + cmd.Name + "' in front of a Redis Cluster: invalidations come from each primary")
}

// A client has connections of its own besides the one for its ordinary commands: for subscriptions, and
// in front of a Redis Cluster also for WATCH and a command that blocks.

// dedicatedConnections are these connections.
type dedicatedConnections struct {
	channels *backend // SUBSCRIBE and PSUBSCRIBE
	shards   shardConnections
	watch    *backend            // WATCH. It stays for the next one
	watched  int                 // the slot of the watched keys
	keys     map[string]struct{} // that are watched
	blocking *backend            // of commands that block in Redis. It stays for the next one
	running  *dedicatedCommand
}

// dedicatedConnections returns the client's own connections.
func (c *client) dedicatedConnections() *dedicatedConnections {
	if c.dedicated == nil {
		c.dedicated = &dedicatedConnections{shards: shardConnections{map[string]*backend{}, map[string]*backend{}}, keys: map[string]struct{}{}}
	}
	return c.dedicated
}

func (o *dedicatedConnections) discard() {
	if o == nil {
		return
	}
	for _, b := range []*backend{o.channels, o.watch, o.blocking} {
		if b != nil {
			b.discard()
		}
	}
	for _, b := range o.shards.byPrimary {
		b.discard()
	}
}

// openDedicated opens a connection of the client's own.
func (c *client) openDedicated(address string, db, proto int) *backend {
	b := newBackend(c.loop, db, proto)
	b.owner, b.primary = c, address
	c.loop.dedicated[b] = struct{}{}
	b.connect()
	return b
}

// connectTo makes the connection at that place lead to a primary, in the client's protocol. A
// connection that does already stays.
func (c *client) connectTo(address string, place **backend) {
	if b := *place; b != nil {
		if b.primary == address && b.proto == c.proto && b.state != discarded && !b.halfClosed {
			return
		}
		b.discard()
	}
	b := c.openDedicated(address, 0, c.proto)
	b.onEnd = func() {
		if *place == b {
			*place = nil
		}
	}
	*place = b
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

// dedicatedCommand is a client's command on one of its own connections. It begins when no reply is
// pending, and the client's next command waits until it has ended: so the order of commands does not
// depend on the connections that they go by, and no message precedes the reply to an earlier command.
type dedicatedCommand struct {
	c       *client
	order   *ordered
	slot    int
	asks    bool // it may run behind ASKING
	repeats bool // it may be sent twice
	// send sends it to a primary, and sets b.
	send func(o *dedicatedCommand, address string, asking bool)
	// broken, if not nil, is called instead of a further try, if Redis has not run the command where
	// it had to, or its connection is lost.
	broken func(o *dedicatedCommand)
	ended  func()        // if not nil, is called before the answer
	marked *replyHandler // of a command of subscriptions

	b *backend // that it was sent on
	upstream.Attempts
	sentAt time.Time
}

// runDedicated runs a command on an own connection, on the primary of its slot. It returns false if the
// client has to wait.
func (c *client) runDedicated(o *dedicatedCommand) bool {
	if c.outstanding > 0 {
		return false
	}
	c.slotsAt = c.loop.slotsAt
	o.c, o.order = c, c.addReply()
	o.order.parts = 1
	c.outstanding++
	c.dedicatedConnections().running = o
	o.try(c.loop.ownerOf(o.slot), false)
	return true
}

func (o *dedicatedCommand) try(address string, asking bool) {
	o.c.busy, o.sentAt = true, o.c.loop.now
	o.send(o, address, asking)
}

// end answers the command, and lets the next one begin.
func (o *dedicatedCommand) end(reply []byte) {
	c := o.c
	if c.closed {
		return
	}
	c.dedicated.running = nil
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
func (o *dedicatedCommand) arrived(reply []byte) {
	to, redirects := upstream.RedirectionOf(reply, o.b.primary)
	switch {
	case !redirects || o.b.primary == "":
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
func (o *dedicatedCommand) follow(to upstream.Redirection, reply []byte) {
	l := o.c.loop
	l.cfg.Cluster.Refresh()
	if l.now.Sub(o.sentAt) > time.Second { // it has blocked since: this is another change of the cluster
		o.Attempts = upstream.Attempts{}
	}
	if (o.asks || !to.Asking) && o.MayFollow(to) {
		o.try(to.Address, to.Asking)
		return
	}
	o.b = nil
	if to.Address != "" { // clients must not see MOVED or ASK
		reply = resp.AppendError(nil, errMoving)
	}
	if o.Since.IsZero() {
		o.Since = l.now
	}
	o.c.waitRefused(refusedCommand{
		slot: o.slot, place: o.order.place, since: o.Since,
		send: func(b *backend) { o.try(b.primary, false) },
		fail: func() { o.end(reply) },
	})
}

// lost handles the end of the command's connection.
func (o *dedicatedCommand) lost(sent bool) {
	switch {
	case o.c.closed:
	case o.b.halfClosed:
		o.c.close() // as Redis does with a client that sends no more and has to wait
	case o.broken != nil:
		o.broken(o)
	case sent && !o.repeats:
		o.end(o.c.loop.lossError(true))
	case o.b.unreachable() || o.b.primary == "": // it has waited for a connection
		o.end(o.c.loop.lossError(false))
	default:
		o.follow(upstream.Redirection{}, o.c.loop.lossError(false))
	}
}

// moveDedicated adapts the client's own connections to a new map.
func (c *client) moveDedicated() {
	o, l := c.dedicated, c.loop
	if r := o.running; r != nil && r.b != nil && r.b.state == connecting && l.ownerOf(r.slot) != r.b.primary {
		r.b.discard() // nothing was sent yet
		r.try(l.ownerOf(r.slot), false)
	}
	if b := o.channels; b != nil && b.state == up && !l.isPrimary(b.primary) {
		b.lost(errNewPrimary)
	}
	for _, place := range []**backend{&o.watch, &o.blocking} { // without the former a client that watches keys gets null for EXEC
		if b := *place; b != nil && b.replies.n == 0 && !l.isPrimary(b.primary) {
			b.discard()
			*place = nil
		}
	}
	if !c.closed {
		c.moveShards()
	}
}
