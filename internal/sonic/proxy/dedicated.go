package proxy

import (
	"bytes"
	"strings"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// subscriptions holds a client's channels, patterns and shard channels, as Redis has confirmed them.
// The proxy must know them because UNSUBSCRIBE without arguments has one reply for each channel.
type subscriptions struct {
	channels, patterns, shards map[string]struct{}
	unconfirmed                int // commands that may change them and have not all their replies
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
	c.own.discard()
	c.own = nil
}

// subscribe runs SUBSCRIBE, UNSUBSCRIBE and their variants.
func (c *client) subscribe(cmd *command.Command, r request.Request) bool {
	if !c.openDedicated() {
		return false
	}
	if c.subs == nil {
		c.subs = &subscriptions{channels: map[string]struct{}{}, patterns: map[string]struct{}{}, shards: map[string]struct{}{}}
	}
	subs := c.subs
	set := subs.channels
	switch cmd.Name[0] {
	case 'p':
		set = subs.patterns
	case 's':
		if cmd.Name != "subscribe" {
			set = subs.shards
		}
	}
	remaining := r.Len() - 1
	if remaining == 0 {
		if subs.unconfirmed > 0 {
			return false // how many replies it has is not known yet
		}
		remaining = max(1, len(set))
	}
	ends := strings.HasSuffix(cmd.Name, "unsubscribe")
	subs.unconfirmed++
	onReply := func(reply []byte) {
		remaining--
		if reply[0] == '-' { // Redis refuses all channels or none
			remaining = 0
		} else if parts, err := resp.Elements(reply); err == nil && len(parts) == 3 {
			if channel := string(resp.Text(parts[1])); ends {
				delete(set, channel)
			} else {
				set[channel] = struct{}{}
			}
		}
		if remaining == 0 {
			subs.unconfirmed--
		}
		c.deliver(reply)
	}
	c.backend.send(pending{client: c, kind: handled, then: &replyHandler{replies: remaining, onReply: onReply, subscription: true}}, r.Raw)
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
