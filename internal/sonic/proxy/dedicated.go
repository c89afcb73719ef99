package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// subscriptions holds a client's channels, patterns and shard channels. The proxy must know them
// because UNSUBSCRIBE without arguments has one reply for each channel.
type subscriptions struct {
	channels, patterns, shards map[string]struct{}
}

func (s *subscriptions) count() int { return len(s.channels) + len(s.patterns) + len(s.shards) }

// openDedicated moves the client to a connection of its own. It returns false while replies are
// pending on another one.
func (c *client) openDedicated() bool {
	if c.backend != nil && c.backend.owner == c && c.backend.state != discarded {
		return true
	}
	if c.outstanding > 0 {
		return false
	}
	b := newBackend(c.loop, c.db, c.proto)
	b.owner = c
	b.onPush = c.deliverPush
	c.loop.dedicated[b] = struct{}{}
	c.backend = b
	b.connect()
	return true
}

// deliverPush handles a push of Redis. It removes invalidations and notifications of state keys.
func (c *client) deliverPush(push []byte) {
	if bytes.Contains(push, []byte(state.Prefix)) {
		push = replies.PushWithoutStateKeys(push)
	}
	c.deliver(push)
}

// closeDedicated closes the client's own connection. No reply may be pending.
func (c *client) closeDedicated() {
	c.watch, c.track, c.subs = false, false, nil
	if c.backend != nil && c.backend.owner == c {
		b := c.backend
		c.backend = nil
		b.discard()
	}
}

// subscribe runs SUBSCRIBE, UNSUBSCRIBE and their variants.
func (c *client) subscribe(cmd *command.Command, r request.Request) bool {
	if !c.openDedicated() {
		return false
	}
	if c.subs == nil {
		c.subs = &subscriptions{map[string]struct{}{}, map[string]struct{}{}, map[string]struct{}{}}
	}
	set := c.subs.channels
	switch cmd.Name[0] {
	case 'p':
		set = c.subs.patterns
	case 's':
		if cmd.Name != "subscribe" {
			set = c.subs.shards
		}
	}
	replies := max(1, r.Len()-1)
	if bytes.Contains([]byte(cmd.Name), []byte("unsubscribe")) {
		if r.Len() == 1 {
			replies = max(1, len(set))
			clear(set)
		}
		for i := 1; i < r.Len(); i++ {
			delete(set, string(r.Arg(i)))
		}
	} else {
		for i := 1; i < r.Len(); i++ {
			set[string(r.Arg(i))] = struct{}{}
		}
	}
	c.backend.push(pending{client: c, kind: handled, then: &replyHandler{replies: replies, onReply: c.deliver, subscription: true}})
	c.backend.out = append(c.backend.out, r.Raw...)
	c.backend.appended(len(r.Raw))
	return true
}

// tracking runs CLIENT TRACKING, TRACKINGINFO and CACHING. CLIENT TRACKING moves the client to a
// connection of its own. Invalidations are pushes of RESP3. With RESP2 they would need REDIRECT to
// another connection, whose id only Redis knows.
func (c *client) tracking(cmd *command.Command, r request.Request) bool {
	if cmd.Name == "client|tracking" {
		for i := 3; i < r.Len(); i++ {
			if resp.EqualFold(r.Arg(i), "redirect") {
				c.replyError("ERR Sonic refuses 'client|tracking' with REDIRECT: use RESP3")
				return true
			}
		}
		if !c.openDedicated() {
			return false
		}
		c.track = c.track || resp.EqualFold(r.Arg(2), "on")
	}
	return c.relay(cmd, r)
}
