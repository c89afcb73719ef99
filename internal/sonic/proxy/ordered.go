package proxy

// orderedReplies puts the replies to a client's commands in the order of the commands, when these
// go to several primaries of a Redis Cluster. The reply to the first command goes to the client
// piece by piece; later ones wait in memory.
type orderedReplies struct {
	first, last *ordered // first is due next; nil: no reply is expected
	places      uint64   // how many commands there were
	bytes       int      // in memory
	current     *ordered // that what is delivered now belongs to; nil: to none, as a message of a channel
}

// ordered is the reply to one command.
type ordered struct {
	place uint64 // of the command among those of the client
	parts int    // replies of Redis that it still needs; 0: it is complete
	data  []byte
	next  *ordered // the reply to the next command
}

// addReply adds the reply to the next command.
func (c *client) addReply() *ordered {
	r, l := &c.replies, c.loop
	o := l.unusedReplies
	if o == nil {
		o = &ordered{}
	} else {
		l.unusedReplies, o.next = o.next, nil
	}
	if r.first == nil {
		r.first = o
	} else {
		r.last.next = o
	}
	r.last = o
	r.places++
	o.place = r.places
	return o
}

// addAnswer adds the proxy's own answer to the next command.
func (c *client) addAnswer(answer []byte) {
	c.addReply().data = append([]byte(nil), answer...)
	c.replies.bytes += len(answer)
}

// several reports whether more than one reply is expected.
func (r *orderedReplies) several() bool { return r.first != r.last }

// hold keeps a piece in memory if it belongs to a reply that is not due yet, and reports whether it
// does.
func (r *orderedReplies) hold(piece []byte) bool {
	if r.current == nil || r.current == r.first {
		return false
	}
	r.current.data = append(r.current.data, piece...)
	r.bytes += len(piece)
	return true
}

// addOrder gives a pending reply its place among those of its client.
func (b *backend) addOrder(p *pending) {
	if b.loop.slots == nil {
		return
	}
	if p.order == nil {
		p.order = p.client.addReply()
	}
	p.order.parts++
	p.slot = p.client.slot
	p.routed = b.owner == nil && (p.kind == relayed || p.kind == function || p.kind == handled && p.then.replies <= 1 && !p.then.connectionBound)
}

// begin says that what is delivered to the client of p from now on belongs to its reply.
func (b *backend) begin(p *pending) {
	if p.client != nil {
		p.client.replies.current = p.order
	}
}

// pendingDone records that a reply of Redis is complete.
func (c *client) pendingDone(p *pending) {
	c.replyDone()
	if !p.since.IsZero() {
		c.waitDone()
	}
	if p.order != nil {
		c.partDone(p.order)
	}
}

// partDone records that a part of a reply is complete. It delivers the replies that are due then.
func (c *client) partDone(o *ordered) {
	r := &c.replies
	r.current = nil
	o.parts--
	if c.closed {
		return
	}
	for r.first != nil && r.first.parts == 0 {
		done := r.first
		if r.first = done.next; r.first == nil {
			r.last = nil
		}
		done.next, c.loop.unusedReplies = c.loop.unusedReplies, done
		if r.first == nil {
			return
		}
		data := r.first.data
		r.first.data = nil
		r.bytes -= len(data)
		if c.deliver(data); c.closed {
			return
		}
	}
}
