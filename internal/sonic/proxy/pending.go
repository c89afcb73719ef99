package proxy

import (
	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/proxy/upstream"
)

// pending is an expected reply on a connection to Redis. Replies arrive in the order of the
// commands.
type pending struct {
	client    *client          // the client that sent the command; nil for the proxy's own
	cmd       *command.Command // nil for the proxy's own
	then      *replyHandler    // nil if no special handling is needed
	start     uint64           // position of the command among all bytes ever queued on the connection
	kind      replyKind
	batchSize uint8 // this many writes, beginning with this one, share one reply
	// emptyArray says that the command replies with RESP2's null array if it finds nothing.
	emptyArray bool

	// In front of a Redis Cluster only:

	order *ordered // the client's reply that this one is, or is a part of
	slot  int      // of the command's keys, noSlot without keys
	// routed says that the command may go to another primary if this one does not have the slot.
	routed bool
	script bool // its errors may be those of a script
	call   bool // it calls a function of the library
	reads  bool // it changes nothing, so it may be sent twice
	asked  bool // it was sent behind ASKING
	upstream.Attempts
}

type replyKind uint8

const (
	relayed     replyKind = iota // the reply goes to the client unchanged
	function                     // the reply of a function: the proxy corrects nulls, and translates errors of the library
	published                    // the reply of a function, with the id of its effect
	proxyAnswer                  // the proxy's own answer, which waits for earlier replies; Redis sends nothing
	handled                      // the reply goes to a function of the proxy
)

// replyHandler says how to handle a reply of kind proxyAnswer or handled.
type replyHandler struct {
	answer []byte // the answer, for kind proxyAnswer
	// replies is how many replies Redis sends; 0 means 1.
	replies int
	// onReply is called for each reply. Its argument is not valid after it returns.
	onReply func(reply []byte)
	// onLost is called instead if the connection has ended. sent says whether Redis may have
	// received the command.
	onLost func(sent bool)
	// connectionBound says that the command may run only on this connection. The proxy does not
	// send it on the next one.
	connectionBound bool
	// onMove, if not nil, says that the command may wait for another primary of a Redis Cluster
	// instead. It is called then.
	onMove func(to *backend)
	// endMark says that the replies end with the map that answers HELLO.
	endMark bool
}

// fifo is a queue in a growing ring.
type fifo struct {
	ring  []pending
	first int
	n     int
}

func (q *fifo) push(p pending) {
	if q.n == len(q.ring) {
		q.grow()
	}
	q.ring[(q.first+q.n)&(len(q.ring)-1)] = p
	q.n++
}

func (q *fifo) front() *pending { return &q.ring[q.first] }

func (q *fifo) at(i int) *pending { return &q.ring[(q.first+i)&(len(q.ring)-1)] }

func (q *fifo) pop() {
	q.ring[q.first] = pending{}
	q.first = (q.first + 1) & (len(q.ring) - 1)
	q.n--
}

func (q *fifo) grow() {
	ring := make([]pending, max(16, 2*len(q.ring)))
	for i := range q.n {
		ring[i] = q.ring[(q.first+i)&(len(q.ring)-1)]
	}
	q.ring, q.first = ring, 0
}

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

// store keeps a piece in memory if it belongs to a reply that is not due yet, and reports whether it
// does.
func (r *orderedReplies) store(piece []byte) bool {
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
	if !p.Since.IsZero() {
		c.waitingDone()
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

// discardReply returns the pending reply of a command that the proxy itself sends for a client. It
// discards the reply.
func discardReply() pending {
	return pending{kind: handled, then: &replyHandler{onReply: func([]byte) {}, onLost: func(bool) {}}}
}
