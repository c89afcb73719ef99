package proxy

// orderedReplies puts the replies to a client's commands in the order of the commands, when these
// go to several primaries of a Redis Cluster. The reply to the first command goes to the client
// piece by piece; later ones wait in memory.
type orderedReplies struct {
	list    []*ordered
	places  uint64   // how many commands there were
	bytes   int      // in memory
	current *ordered // that what is delivered now belongs to; nil: to none, as a message of a channel
}

// ordered is the reply to one command.
type ordered struct {
	place uint64 // of the command among those of the client
	parts int    // replies of Redis that it still needs
	data  []byte
	done  bool
}

// add adds the reply to the next command.
func (r *orderedReplies) add() *ordered {
	r.places++
	o := &ordered{place: r.places}
	r.list = append(r.list, o)
	return o
}

// addAnswer adds the proxy's own answer to the next command.
func (r *orderedReplies) addAnswer(answer []byte) {
	o := r.add()
	o.data, o.done = append([]byte(nil), answer...), true
	r.bytes += len(answer)
}

// first returns the reply that is due next, nil if none is.
func (r *orderedReplies) first() *ordered {
	if len(r.list) == 0 {
		return nil
	}
	return r.list[0]
}

// hold keeps a piece in memory if it belongs to a reply that is not due yet, and reports whether it
// does.
func (r *orderedReplies) hold(piece []byte) bool {
	if r.current == nil || r.current == r.first() {
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
		p.order = p.client.replies.add()
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
	if o.done = o.parts == 0; c.closed {
		return
	}
	for len(r.list) > 0 && r.list[0].done {
		r.list[0] = nil
		r.list = r.list[1:]
		if len(r.list) == 0 {
			r.list = nil
			return
		}
		data := r.list[0].data
		r.list[0].data = nil
		r.bytes -= len(data)
		if c.deliver(data); c.closed {
			return
		}
	}
}
