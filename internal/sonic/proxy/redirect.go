package proxy

import (
	"bytes"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// While a slot moves to another primary, or a replica takes over, a Redis Cluster answers commands
// with errors that name the primary to send them to: see "Redis cluster specification", section
// "Redirection and resharding". The proxy follows them, so that clients see none.

const (
	// maxRedirects is how often a command goes to another primary at once. Then it waits before each
	// further try: the primaries do not agree yet.
	maxRedirects = 5
	// clusterPause is how long a command waits before it is tried again.
	clusterPause = 20 * time.Millisecond
)

// attempts says how a command has followed the cluster so far.
type attempts struct {
	redirects int       // how often it has gone to another primary at once
	since     time.Time // when it first had to wait; zero: it has not
}

// mayFollow reports whether the command may go to another primary at once, and counts it.
func (a *attempts) mayFollow(to redirection) bool {
	if to.address == "" || a.redirects >= maxRedirects {
		return false
	}
	a.redirects++
	return true
}

// redirection is what an error of a Redis Cluster asks for.
type redirection struct {
	address string // where to send the command; empty: try it again later
	asking  bool   // behind ASKING
	moving  bool   // the error names another primary: clients must not see it
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
	case "TRYAGAIN", "CLUSTERDOWN", "READONLY": // READONLY: a former primary that is a replica now, to a command without keys
		return to, true
	case "MOVED", "ASK":
		if len(words) != 3 {
			return to, false
		}
		to.moving, to.asking = true, string(words[0]) == "ASK"
		colon := bytes.LastIndexByte(words[2], ':')
		if colon < 0 {
			return to, true
		}
		host, port := string(words[2][:colon]), string(words[2][colon+1:]) // an IPv6 address has no brackets
		if host == "" || host == "?" {                                     // the node does not know under which name clients reach it
			host, _, _ = net.SplitHostPort(from)
		}
		to.address = net.JoinHostPort(host, port)
		return to, true
	default:
		return to, false
	}
}

// isClusterError reports whether an error is that of a Redis Cluster for a command with keys in a
// slot. A script can return an error of its own that begins in the same way.
func isClusterError(text string, slot int) bool {
	switch text {
	case "TRYAGAIN Multiple keys request during rehashing of slot", "CLUSTERDOWN Hash slot not served",
		"CLUSTERDOWN The cluster is down", "CLUSTERDOWN The cluster is down and only accepts read commands":
		return true
	}
	return strings.HasPrefix(text, fmt.Sprintf("MOVED %d ", slot)) || strings.HasPrefix(text, fmt.Sprintf("ASK %d ", slot))
}

// redirection reads the reply to p, see redirectionOf.
func (b *backend) redirection(p *pending, reply []byte) (to redirection, ok bool) {
	to, ok = redirectionOf(reply, b.primary)
	if ok && p.script {
		ok = isClusterError(string(resp.Text(reply)), p.slot)
		if !b.loop.isPrimary(to.address) {
			to.address = "" // use the map: the proxy must not log in at an address that a script names
		}
	}
	return to, ok
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
	to, ok := b.redirection(b.replies.front(), reply)
	if !ok {
		return false
	}
	b.loop.cfg.Cluster.Refresh()
	p := *b.replies.front()
	command := bytes.Clone(b.command(0))
	if p.mayFollow(to) {
		target := b.loop.connectionTo(to.address, 0, b.proto)
		if to.asking {
			target.send(discardReply(), resp.AppendCommand(nil, "ASKING"))
		}
		b.replies.pop()
		target.sendAgain(p, command)
		if c := p.client; target.full() && (c.backend == nil || c.backend.owner != c) {
			c.backend = target
			c.pauseIfAboveLimit()
		}
		return true
	}
	if p.client.closed {
		return false
	}
	first := p.since.IsZero()
	if !p.client.waitForCluster(&p.attempts, func() { b.loop.primaryOf(p.slot, b.proto).sendAgain(p, command) }) {
		if to.moving { // clients must not see MOVED or ASK
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
// is tried again is complete. It returns false if the command has waited for Backend.Wait, or the
// client has sent further commands: these may have been executed already, and the one that waits
// would run behind them.
func (c *client) waitForCluster(a *attempts, again func()) bool {
	l := c.loop
	if a.since.IsZero() {
		a.since = l.now
	}
	if c.replies.several() || l.now.Sub(a.since) >= l.cfg.Backend.Wait {
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

// keepUnsent is called when the connection to a primary is lost. It answers the commands that Redis
// may have received with an error, unless they only read and their clients sent no write behind
// them, whose effect they would see. The others stay in order.
func (b *backend) keepUnsent() {
	sent := b.queuedBytes - uint64(len(b.out)-b.sent)
	wrote := map[*client]bool{}
	for i := b.replies.n - 1; i >= 0; i-- {
		p := b.replies.at(i)
		if p.reads = p.reads && !wrote[p.client]; p.start < sent && !p.reads && p.client != nil {
			wrote[p.client] = true
		}
	}
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
		if p.then != nil && p.then.connectionBound {
			b.fail(&p, false)
			continue
		}
		if p.client != nil { // transactions, too: none was sent yet
			target = b.loop.primaryOf(p.slot, b.proto)
			if p.then != nil && p.then.onMove != nil {
				p.then.onMove(target)
			}
		}
		target.sendAgain(p, commands[i])
	}
	b.resumeClients()
}
