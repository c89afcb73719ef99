package proxy

import (
	"bytes"

	"go.uber.org/zap"

	"github.com/aviaryhq/aviary/internal/sonic/proxy/eventloop"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// Errors for clients when the connection to Redis is lost.
const (
	errUnknownOutcome = "ERR the connection to Redis was lost while this command ran: whether it took effect is unknown"
	errUnrecorded     = "ERR the script ran while no Sonic had opened this Redis: its writes are not replicated to other zones"
	errUnpublished    = "ERR the connection to Redis was lost before Pulsar had stored this command's effect: whether it took effect is unknown"
	errUnreachable    = "LOADING Redis cannot be reached: the command was not run"

	errPrimaryUnreachable = "CLUSTERDOWN the primary of this slot cannot be reached: the command was not run"
)

// failUnsent answers commands that waited too long for a connection with an error.
func (b *backend) failUnsent() {
	b.failTimer = eventloop.Stopped() // no new timer until the connection is up again
	b.failAll()
	if b.owner != nil {
		// Commands that need the client's own connection may have failed, WATCH or SUBSCRIBE for
		// instance. So the proxy disconnects the client.
		b.discard()
		b.onEnd()
	}
}

// unreachable reports whether the connection has been down for Backend.Wait, so that commands fail
// at once.
func (b *backend) unreachable() bool {
	return b.state != up && b.loop.now.Sub(b.downSince) >= b.loop.cfg.Backend.Wait
}

// failAll answers all commands that were not sent with an error.
func (b *backend) failAll() {
	b.batch = writeBatch{}
	for b.replies.n > 0 {
		b.failFront(false)
	}
	b.out, b.sent = b.out[:0], 0
	b.resumeClients()
}

// failFront removes the first pending command and answers it: with the proxy's own answer if it has
// one, else with an error. sent says whether Redis may have received the command.
func (b *backend) failFront(sent bool) {
	p := *b.replies.front()
	b.replies.pop()
	b.fail(&p, sent)
}

// fail completes a command that is pending no more with an error. sent says whether Redis may have
// received it.
func (b *backend) fail(p *pending, sent bool) {
	b.begin(p)
	switch {
	case p.kind == proxyAnswer:
		b.deliverAnswer(p, p.then.answer)
	case p.then != nil && p.then.onLost != nil:
		p.then.onLost(sent)
	case p.client != nil:
		p.client.deliver(b.loop.lossError(sent))
	}
	if p.client != nil {
		p.client.pendingDone(p)
	}
}

// lostCommand answers a command with an error because its connection was lost.
func (c *client) lostCommand(sent bool) {
	c.commandDone()
	c.deliver(c.loop.lossError(sent))
}

// lossError returns the error of a command whose connection was lost. sent says whether Redis may
// have received it.
func (l *loop) lossError(sent bool) []byte {
	text := errUnreachable
	switch {
	case sent:
		l.proxy.metrics.unknownOutcome.Inc()
		text = errUnknownOutcome
	case l.slots != nil:
		text = errPrimaryUnreachable
	}
	return resp.AppendError(nil, text)
}

// lost ends the connection. Commands that were not sent yet wait for the next one, see [backend] for
// the exceptions.
func (b *backend) lost(err error) {
	if b.state != up {
		return
	}
	b.endBatch()
	l := b.loop
	l.release(b.fd)
	b.fd, b.state, b.downSince = -1, connecting, l.now
	if b.owner == nil {
		l.proxy.connectionDown(b.primary, err)
	}
	l.log.Debug("the connection to Redis ended", zap.Int("db", b.db), zap.Error(err))
	if b.streaming && b.inReply && b.replies.n > 0 {
		if c := b.replies.front().client; c != nil {
			c.close() // it has already received a part of the reply
		}
	}
	b.scan, b.partialLine, b.partialReply, b.inReply, b.streaming, b.dropping = resp.Scanner{}, nil, nil, false, false, false
	b.measuring, b.demoted, b.opened = false, false, false
	if b.owner == nil {
		l.failUnpublished()
	} else {
		b.owner.failUnpublished()
	}
	if b.primary != "" && b.owner == nil {
		b.keepUnsent()
		b.moveWaiting() // the map may name another primary already
		b.connect()
		return
	}
	unsent := b.queuedBytes - uint64(len(b.out)-b.sent) // where the unsent bytes begin
	for b.replies.n > 0 && (b.replies.front().start < unsent || b.replies.front().kind == proxyAnswer) {
		b.failFront(true)
	}
	if b.owner != nil {
		// The state that Redis kept for the connection is lost. The proxy disconnects the client,
		// so that it notices.
		b.failAll()
		b.discard()
		b.onEnd()
		return
	}
	if b.hasConnectionBound() {
		b.failAll()
	}
	keep := 0
	if b.replies.n > 0 {
		keep = int(b.queuedBytes - b.replies.front().start)
	}
	b.out, b.sent = append(b.out[:0], b.out[len(b.out)-keep:]...), 0
	b.connect()
}

// hasConnectionBound reports whether a pending command may run only on the connection that has
// ended.
func (b *backend) hasConnectionBound() bool {
	for i := range b.replies.n {
		if then := b.replies.at(i).then; then != nil && then.connectionBound {
			return true
		}
	}
	return false
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
		target.requeue(p, commands[i])
	}
	b.resumeClients()
}
