package proxy

import (
	"bytes"
	"net"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// While a slot moves to another primary, or a replica takes over, a Redis Cluster answers commands
// by errors that tell where to send them: see "Redis cluster specification", section "Redirection
// and resharding". The proxy follows them, so that clients see none.

const (
	// maxRedirects is how often a command goes to another primary at once. Then it waits before each
	// further try: the primaries do not agree yet.
	maxRedirects = 5
	// clusterPause is how long a command waits before it is tried again.
	clusterPause = 20 * time.Millisecond
)

// redirection is what an error of a Redis Cluster asks for.
type redirection struct {
	address string // where to send the command; empty: try it again later
	asking  bool   // behind ASKING
}

// redirectionOf reads a reply. ok is false if it is none of these errors. from is the primary that
// sent it.
func redirectionOf(reply []byte, from string) (to redirection, ok bool) {
	if reply[0] != '-' {
		return to, false
	}
	words := bytes.Fields(resp.Text(reply))
	if len(words) == 0 {
		return to, false
	}
	switch string(words[0]) {
	case "TRYAGAIN", "CLUSTERDOWN":
		return to, true
	case "MOVED", "ASK":
		if len(words) != 3 {
			return to, false
		}
		host, port, err := net.SplitHostPort(string(words[2]))
		if err != nil {
			return to, true
		}
		if host == "" || host == "?" { // the node does not know under which name clients reach it
			host, _, _ = net.SplitHostPort(from)
		}
		return redirection{net.JoinHostPort(host, port), string(words[0]) == "ASK"}, true
	default:
		return to, false
	}
}

// isRedirection reports whether a reply is one of these errors.
func isRedirection(reply []byte) bool {
	_, ok := redirectionOf(reply, "")
	return ok
}

// redirected follows the redirection in the reply to the first pending command, if there is one and
// if it may. It reports whether it did.
func (b *backend) redirected(reply []byte) bool {
	if b.replies.n == 0 || !b.replies.front().routed {
		return false
	}
	if b.loop.cfg.Replicate {
		return b.refusedByShard(reply)
	}
	to, ok := redirectionOf(reply, b.primary)
	if !ok {
		return false
	}
	b.loop.cfg.Cluster.Refresh()
	p := *b.replies.front()
	command := bytes.Clone(b.command(0))
	if to.address != "" && p.redirects < maxRedirects {
		p.redirects++
		target := b.loop.connectionTo(to.address, 0, b.proto)
		if to.asking {
			target.send(pending{kind: handled, then: &replyHandler{onReply: func([]byte) {}, onLost: func(bool) {}}}, resp.AppendCommand(nil, "ASKING"))
		}
		b.replies.pop()
		target.sendAgain(p, command)
		return true
	}
	if p.client.closed {
		return false
	}
	first := p.since.IsZero()
	if first {
		p.since = b.loop.now
	}
	if !p.client.waitForCluster(p.since, func() { b.loop.primaryOf(p.slot, b.proto).sendAgain(p, command) }) {
		if to.address != "" { // clients know of no cluster
			b.begin(&p)
			p.client.deliver(resp.AppendError(nil, errMoving))
			b.completed()
			return true
		}
		return false
	}
	if first {
		p.client.waiting++
	}
	b.replies.pop()
	return true
}

const errMoving = "TRYAGAIN the slot of this command is moving: the command was not run"

// waitForCluster calls again after a pause. The client's next command waits until the command that
// is tried again is complete. It returns false if the client has waited since then for Backend.Wait,
// or has sent further commands: these may have been executed already, and the one that waits would
// run behind them.
func (c *client) waitForCluster(since time.Time, again func()) bool {
	l := c.loop
	if len(c.replies.list) > 1 || l.now.Sub(since) >= l.cfg.Backend.Wait {
		return false
	}
	c.busy = true
	l.timers.Start(l.now.Add(clusterPause), func() {
		if !c.closed {
			again()
		}
	})
	return true
}

// waitDone records that a command that had to wait for the cluster, or a part of one, is complete.
func (c *client) waitDone() {
	if c.waiting--; c.waiting == 0 {
		c.commandDone()
	}
}

// command returns pending command i with its arguments. It is valid until out changes.
func (b *backend) command(i int) []byte {
	end := b.queuedBytes
	if i+1 < b.replies.n {
		end = b.replies.at(i + 1).start
	}
	first := b.queuedBytes - uint64(len(b.out))
	return b.out[b.replies.at(i).start-first : end-first]
}

// sendAgain queues a command that has been pending on another connection.
func (b *backend) sendAgain(p pending, command []byte) {
	b.endBatch()
	p.start = b.queuedBytes
	b.replies.push(p)
	b.out = append(b.out, command...)
	b.appended(len(command))
}

// dropAnswered drops the commands at the beginning of out that have their replies. Others stay, for
// they may have to go to another primary.
func (b *backend) dropAnswered() {
	answered := len(b.out)
	if b.replies.n > 0 {
		answered -= int(b.queuedBytes - b.replies.front().start)
	}
	switch {
	case answered == len(b.out):
		b.out, b.sent = b.out[:0], 0
		if cap(b.out) > keptBuffer {
			b.out = nil
		}
	case answered > keptBuffer && answered > len(b.out)/2:
		b.out = append(b.out[:0], b.out[answered:]...)
		b.sent -= answered
	}
}

// keepUnsent is called when the connection to a primary is lost. It answers the commands that Redis
// may have received with an error, unless they only read. The others stay in order.
func (b *backend) keepUnsent() {
	sent := b.queuedBytes - uint64(len(b.out)-b.sent)
	var kept []pending
	var out []byte
	for b.replies.n > 0 {
		p := *b.replies.front()
		bound := p.then != nil && p.then.connectionBound
		if sent := p.start < sent; sent && !(p.routed && p.reads) || bound {
			b.failFront(sent)
			continue
		}
		p.start = uint64(len(out))
		out = append(out, b.command(0)...)
		kept = append(kept, p)
		b.replies.pop()
	}
	b.out, b.sent = out, 0
	for _, p := range kept {
		p.start += b.queuedBytes - uint64(len(out))
		b.replies.push(p)
	}
}

// moveWaiting sends commands that wait for this primary to the ones that have their slots now.
func (b *backend) moveWaiting() {
	b.endBatch()
	var kept []pending
	var commands [][]byte
	for b.replies.n > 0 {
		p := *b.replies.front()
		if n := int(p.batchSize); n > 1 {
			for _, call := range b.singleCalls(n) {
				kept, commands = append(kept, *b.replies.front()), append(commands, call)
				kept[len(kept)-1].batchSize = 0
				b.replies.pop()
			}
			continue
		}
		kept, commands = append(kept, p), append(commands, bytes.Clone(b.command(0)))
		b.replies.pop()
	}
	b.out, b.sent = nil, 0
	for i, p := range kept {
		target := b
		if p.then != nil && p.then.connectionBound && p.client == nil {
			p.then.onLost(false)
			continue
		}
		if p.routed {
			target = b.loop.primaryOf(p.slot, b.proto)
		}
		target.sendAgain(p, commands[i])
	}
	b.resumeClients()
}
