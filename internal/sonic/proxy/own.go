package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// subscriptions are a client's channels, patterns and shard channels, as its commands make them: UNSUBSCRIBE without
// arguments has as many replies as there are channels.
type subscriptions struct {
	channels, patterns, shards map[string]struct{}
}

func (s *subscriptions) count() int { return len(s.channels) + len(s.patterns) + len(s.shards) }

// takeOwn moves the client to a connection of its own. It returns false while replies are due on another one.
func (c *client) takeOwn() bool {
	if c.b != nil && c.b.owner == c && c.b.state != discarded {
		return true
	}
	if c.outstanding > 0 {
		return false
	}
	b := newBackend(c.l, c.db, c.proto)
	b.owner = c
	b.pushed = c.pushed
	c.l.own[b] = struct{}{}
	c.b = b
	b.connect()
	return true
}

// pushed takes what Redis tells without having been asked. Invalidations and notifications of state keys are not for clients.
func (c *client) pushed(push []byte) {
	if bytes.Contains(push, []byte(statePrefix)) {
		push = withoutStateIn(push)
	}
	c.deliver(push)
}

// withoutStateIn leaves state keys out of a push that may name some. It returns nil when nothing is left.
func withoutStateIn(push []byte) []byte {
	parts, err := resp.Elements(push)
	if err != nil || len(parts) < 2 {
		return push
	}
	switch string(resp.Text(parts[0])) {
	case "invalidate":
		keys := withoutState(parts[1])
		if string(keys) == "*0\r\n" {
			return nil
		}
		kept := resp.AppendHeader(nil, push[0], 2)
		kept = append(kept, parts[0]...)
		return append(kept, keys...)
	case "message", "pmessage":
		if aboutState(resp.Text(parts[len(parts)-2]), resp.Text(parts[len(parts)-1])) {
			return nil
		}
	}
	return push
}

// aboutState reports whether a message is a notification of a state key: __keyspace@DB__:KEY with the event, or __keyevent@DB__:EVENT with the key.
func aboutState(channel, message []byte) bool {
	if bytes.HasPrefix(channel, []byte("__keyevent@")) {
		return isState(message)
	}
	_, key, found := bytes.Cut(channel, []byte("__:"))
	return found && bytes.HasPrefix(channel, []byte("__keyspace@")) && isState(key)
}

// dropOwn gives up the client's own connection. Nothing is due.
func (c *client) dropOwn() {
	c.watch, c.track, c.subs = false, false, nil
	if c.b != nil && c.b.owner == c {
		b := c.b
		c.b = nil
		b.discard()
	}
}

// subscribe runs SUBSCRIBE and its kin.
func (c *client) subscribe(cmd *command.Command, r request) bool {
	if !c.takeOwn() {
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
	replies := max(1, r.len()-1)
	if bytes.Contains([]byte(cmd.Name), []byte("unsubscribe")) {
		if r.len() == 1 {
			replies = max(1, len(set))
			clear(set)
		}
		for i := 1; i < r.len(); i++ {
			delete(set, string(r.arg(i)))
		}
	} else {
		for i := 1; i < r.len(); i++ {
			set[string(r.arg(i))] = struct{}{}
		}
	}
	c.b.push(pending{client: c, kind: handled, then: &handling{replies: replies, each: c.deliver, subscription: true}})
	c.b.out = append(c.b.out, r.raw...)
	c.b.appended(len(r.raw))
	return true
}

// tracking runs CLIENT TRACKING and its kin on the client's own connection. Invalidations are pushes of RESP3; RESP2
// needs another connection for them, whose id only Redis knows.
func (c *client) tracking(cmd *command.Command, r request) bool {
	if cmd.Name == "client|tracking" {
		for i := 3; i < r.len(); i++ {
			if resp.EqualFold(r.arg(i), "redirect") {
				c.replyError("ERR Sonic refuses 'client|tracking' with REDIRECT: use RESP3")
				return true
			}
		}
		if !c.takeOwn() {
			return false
		}
		c.track = c.track || resp.EqualFold(r.arg(2), "on")
	}
	return c.relay(cmd, r)
}
