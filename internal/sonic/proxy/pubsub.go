package proxy

import (
	"bytes"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/cluster"
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/replies"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/request"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/state"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// A client's subscriptions are on connections of its own. These use RESP3, whatever the client uses:
// pushes and replies then differ. HELLO follows each command, since Redis answers SUBSCRIBE and the
// commands like it by pushes only, and UNSUBSCRIBE by as many as there are channels.

// subscriptions holds a client's channels, patterns and shard channels, as Redis has confirmed them.
type subscriptions struct{ channels, patterns, shards map[string]struct{} }

func (s *subscriptions) count() int { return len(s.channels) + len(s.patterns) + len(s.shards) }

func (c *client) beginSubscriptions() {
	if c.subs == nil {
		c.subs = &subscriptions{channels: map[string]struct{}{}, patterns: map[string]struct{}{}, shards: map[string]struct{}{}}
	}
}

// endMark returns the command whose reply marks the end of the replies to a command: the only map
// among them. PING would not do. Redis refuses it while it cannot write to its disk, for instance.
func endMark() []byte { return resp.AppendCommand(nil, "HELLO", "3") }

// subscribe runs SUBSCRIBE, PSUBSCRIBE and the commands that end them, in front of a single Redis also
// those for shard channels. All nodes of a cluster have all messages, so that any primary will do.
func (c *client) subscribe(_ *command.Command, r request.Request) bool {
	if c.outstanding > 0 {
		return false
	}
	c.beginSubscriptions()
	raw := bytes.Clone(r.Raw)
	return c.runDedicated(&dedicatedCommand{slot: noSlot, send: func(o *dedicatedCommand, address string, _ bool) {
		d := c.dedicated
		if d.channels == nil || d.channels.state == discarded {
			db := 0
			if c.loop.slots == nil {
				db = c.db
			}
			b := c.openDedicated(address, db, 3)
			b.onPush = c.channelPush
			b.onEnd = func() {
				d.channels = nil
				if len(c.subs.channels)+len(c.subs.patterns) > 0 || c.loop.slots == nil && len(c.subs.shards) > 0 {
					c.disconnect()
				}
			}
			d.channels = b
		}
		o.b = d.channels
		o.sendMarked(raw)
	}})
}

// channels returns the connection of the client's channels and patterns, nil if there is none.
func (c *client) channels() *backend {
	if c.dedicated == nil || c.dedicated.channels == nil || c.dedicated.channels.state == discarded {
		return nil
	}
	return c.dedicated.channels
}

// useChannels makes the commands of a client of RESP3 go by the connection of its channels, so that
// no reply is older than a message before it, as with Redis. A client of RESP2 has no such replies.
func (c *client) useChannels() bool {
	b := c.channels()
	if b == nil || c.proto == 2 {
		return false
	}
	c.backend = b
	if b.db != c.db {
		c.setDB(c.db)
	}
	return true
}

// leaveChannels ends what useChannels did. No reply may be pending.
func (c *client) leaveChannels() {
	if c.backend != nil && c.backend == c.channels() {
		c.backend = nil
	}
}

// In front of a Redis Cluster a client has one connection to each primary that has slots of its shard
// channels. When a slot moves, Redis ends its subscriptions, and the proxy subscribes again at the
// next primary; the client gets no reply for it. Messages in between are lost: Pub/Sub delivers at most
// once.

// shardConnections are those of one client.
type shardConnections struct {
	byPrimary map[string]*backend
	// at says by which connection each channel comes. One that moves may have none for a while.
	at map[string]*backend
}

// to returns the client's connection for shard channels to a primary.
func (s *shardConnections) to(address string, c *client) *backend {
	if b := s.byPrimary[address]; b != nil && b.state != discarded {
		return b
	}
	b := c.openDedicated(address, 0, 3)
	b.onPush = func(push []byte) { c.shardPush(b, push) }
	b.onEnd = func() {
		delete(s.byPrimary, address)
		if s.used(b) {
			c.disconnect()
		}
	}
	s.byPrimary[address] = b
	return b
}

func (s *shardConnections) used(b *backend) bool {
	return slices.Contains(slices.Collect(maps.Values(s.at)), b)
}

// dropUnusedShards ends the connections that no channel needs.
func (c *client) dropUnusedShards() {
	if c.closed {
		return
	}
	for address, b := range c.dedicated.shards.byPrimary {
		if !c.dedicated.shards.used(b) && (c.dedicated.running == nil || c.dedicated.running.b != b) {
			delete(c.dedicated.shards.byPrimary, address)
			b.discard()
		}
	}
}

// shardSlot returns the slot of the channels of a command. ok is false if they are in several.
func shardSlot(r request.Request) (slot int, ok bool) {
	slot, ok = noSlot, true
	for i := 1; i < r.Len() && ok; i++ {
		slot, ok = joinSlots(slot, cluster.Slot(r.Arg(i)))
	}
	return slot, ok
}

// subscribeShards runs SSUBSCRIBE and SUNSUBSCRIBE in front of a Redis Cluster.
func (c *client) subscribeShards(cmd *command.Command, r request.Request) bool {
	slot, ok := shardSlot(r)
	switch {
	case !ok:
		return c.replyError(errCrossSlot)
	case c.outstanding > 0:
		return false
	}
	c.beginSubscriptions()
	if cmd.Name == "sunsubscribe" {
		return c.unsubscribeShards(r)
	}
	raw := bytes.Clone(r.Raw)
	return c.runDedicated(&dedicatedCommand{slot: slot, ended: c.dropUnusedShards, send: func(o *dedicatedCommand, address string, _ bool) {
		o.b = c.dedicated.shards.to(address, c)
		o.sendMarked(raw)
		c.dropUnusedShards()
	}})
}

// unsubscribeShards runs SUNSUBSCRIBE. The proxy answers it: its connections do not know how many
// channels the client has in all.
func (c *client) unsubscribeShards(r request.Request) bool {
	shards := &c.dedicatedConnections().shards
	var channels []string
	for i := 1; i < r.Len(); i++ {
		channels = append(channels, string(r.Arg(i)))
	}
	if r.Len() == 1 {
		for channel := range c.subs.shards {
			channels = append(channels, channel)
		}
	}
	answer := c.endShards(channels)
	ended := map[*backend][]string{}
	for _, channel := range channels {
		if b := shards.at[channel]; b != nil {
			delete(shards.at, channel)
			ended[b] = append(ended[b], channel)
		}
	}
	c.dropUnusedShards()
	maps.DeleteFunc(ended, func(b *backend, _ []string) bool { return b.state == discarded })
	left := len(ended)
	if left == 0 {
		return c.reply(answer)
	}
	o := &dedicatedCommand{slot: noSlot}
	done := func([]byte) { // an error says that the slot has moved, which ended the subscriptions, too
		if left--; left == 0 {
			o.end(answer)
		}
	}
	o.send = func(*dedicatedCommand, string, bool) {
		for b, channels := range ended {
			raw := resp.AppendCommand(nil, append([]string{"SUNSUBSCRIBE"}, channels...)...)
			sendMarked(b, raw, done, func(bool) { done(nil) })
		}
	}
	return c.runDedicated(o)
}

// endShards removes channels from those of the client, and returns what Redis answers.
func (c *client) endShards(channels []string) (answer []byte) {
	for _, channel := range channels {
		delete(c.subs.shards, channel)
		answer = append(answer, c.shardAnswer("sunsubscribe", resp.AppendBulk(nil, channel))...)
	}
	if len(channels) == 0 {
		answer = c.shardAnswer("sunsubscribe", []byte(replies.NullRESP3))
	}
	return answer
}

// shardAnswer returns the push that answers for one channel. It counts the channels on all
// connections, which Redis does not know.
func (c *client) shardAnswer(kind string, channel []byte) []byte {
	return c.push([][]byte{resp.AppendBulk(nil, kind), channel, resp.AppendHeader(nil, ':', len(c.subs.shards))})
}

// shardPush handles a push of a connection with shard channels.
func (c *client) shardPush(b *backend, push []byte) {
	if replies.IsMessage(push) {
		c.deliverPush(push)
		return
	}
	elements := resp.Elements(push)
	if len(elements) != 3 {
		return
	}
	shards := &c.dedicated.shards
	channel := string(resp.Text(elements[1]))
	switch string(resp.Text(elements[0])) {
	case "ssubscribe":
		if running := c.dedicated.running; running == nil || running.marked != b.replies.front().then {
			return // the proxy has subscribed again
		}
		shards.at[channel] = b
		c.subs.shards[channel] = struct{}{}
		c.deliver(c.shardAnswer("ssubscribe", elements[1]))
	case "sunsubscribe":
		if shards.at[channel] != b {
			return // the client has ended it
		}
		delete(shards.at, channel) // its slot has moved
		c.loop.cfg.Cluster.Refresh()
		c.resubscribe(channel, c.loop.now)
		c.dropUnusedShards()
	}
}

// resubscribe subscribes to a channel whose slot has moved. since is when it had to at first.
func (c *client) resubscribe(channel string, since time.Time) {
	c.resubscribeAt(c.loop.ownerOf(cluster.Slot([]byte(channel))), channel, since)
}

func (c *client) resubscribeAt(address, channel string, since time.Time) {
	shards := &c.dedicated.shards
	b := shards.to(address, c)
	shards.at[channel] = b
	sendMarked(b, resp.AppendCommand(nil, "SSUBSCRIBE", channel), func(refusal []byte) {
		if refusal != nil && shards.at[channel] == b {
			delete(shards.at, channel)
			c.retrySubscription(refusal, b.primary, channel, since)
			c.dropUnusedShards()
		}
	}, func(bool) {}) // the client is disconnected
}

// retrySubscription follows the redirection in a refusal at once while the slot has just moved, later
// after a pause.
func (c *client) retrySubscription(refusal []byte, from, channel string, since time.Time) {
	l := c.loop
	to, ok := upstream.RedirectionOf(refusal, from)
	l.cfg.Cluster.Refresh()
	switch {
	case !ok || l.now.Sub(since) >= l.cfg.Backend.Wait:
		c.disconnect()
	case to.Address != "" && to.Address != from && l.now.Sub(since) < clusterPause:
		c.resubscribeAt(to.Address, channel, since)
	default:
		l.timers.Start(l.now.Add(clusterPause), func() {
			if c.closed || c.dedicated == nil || c.subs == nil {
				return
			}
			if _, wanted := c.subs.shards[channel]; wanted && c.dedicated.shards.at[channel] == nil {
				c.resubscribe(channel, since)
			}
		})
	}
}

// moveShards moves the channels of connections to servers that are no primaries any more.
func (c *client) moveShards() {
	shards := &c.dedicated.shards
	for address, b := range shards.byPrimary {
		if !c.loop.isPrimary(address) && (c.dedicated.running == nil || c.dedicated.running.b != b) {
			delete(shards.byPrimary, address)
			b.discard()
		}
	}
	for channel, b := range shards.at {
		if b.state == discarded {
			c.resubscribe(channel, c.loop.now)
		}
	}
}

// sendMarked sends a client's command of subscriptions.
func (o *dedicatedCommand) sendMarked(raw []byte) {
	o.marked = sendMarked(o.b, raw, func(refusal []byte) {
		if refusal != nil {
			o.arrived(refusal)
		} else {
			o.end(nil) // the pushes were the answer
		}
	}, o.lost)
}

// sendMarked sends a command of subscriptions and its end mark. done gets the error that Redis
// answers, nil if there is none.
func sendMarked(b *backend, raw []byte, done func(refusal []byte), lost func(sent bool)) *replyHandler {
	var refusal []byte
	then := &replyHandler{replies: 2, endMark: true, onLost: lost, onReply: func(reply []byte) {
		if reply[0] != '%' {
			refusal = bytes.Clone(reply)
		} else {
			done(refusal)
		}
	}}
	b.send(pending{kind: handled, then: then}, append(bytes.Clone(raw), endMark()...))
	return then
}

// channelPush handles a push of the connection of channels and patterns.
func (c *client) channelPush(push []byte) {
	if replies.IsMessage(push) {
		c.deliverPush(push)
		return
	}
	elements := resp.Elements(push)
	if len(elements) != 3 {
		return
	}
	kind, channel, set := string(resp.Text(elements[0])), string(resp.Text(elements[1])), c.subs.channels
	switch kind {
	case "psubscribe", "punsubscribe":
		set = c.subs.patterns
	case "ssubscribe", "sunsubscribe":
		set = c.subs.shards
	}
	if strings.HasSuffix(kind, "unsubscribe") {
		delete(set, channel)
	} else {
		set[channel] = struct{}{}
	}
	c.deliver(c.push(elements))
}

// deliverPush delivers a push in the client's protocol. It changes it. It removes invalidations and
// notifications of state keys.
func (c *client) deliverPush(push []byte) {
	if bytes.Contains(push, []byte(state.Prefix)) {
		push = replies.PushWithoutStateKeys(push)
	}
	if c.proto == 2 && len(push) > 0 {
		push[0] = '*'
	}
	c.deliver(push)
}

// push returns a push of RESP3 in the client's protocol.
func (c *client) push(elements [][]byte) []byte {
	letter := byte('>')
	if c.proto == 2 {
		letter = '*'
	}
	out := resp.AppendHeader(nil, letter, len(elements))
	for _, element := range elements {
		if c.proto == 2 && element[0] == '_' { // no channel is left
			element = []byte("$-1\r\n")
		}
		out = append(out, element...)
	}
	return out
}

// pingWhileSubscribed returns what Redis answers a client of RESP2 with subscriptions.
func pingWhileSubscribed(r request.Request) []byte {
	var text []byte
	if r.Len() == 2 {
		text = r.Arg(1)
	}
	return resp.AppendBulk(resp.AppendBulk(resp.AppendHeader(nil, '*', 2), "pong"), text)
}
