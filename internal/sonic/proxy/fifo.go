package proxy

import "github.com/aviaryhq/aviary/internal/sonic/command"

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
	// messages says that messages may arrive before the reply: the client had subscriptions.
	messages bool

	// In front of a Redis Cluster only:

	order *ordered // the client's reply that this one is, or is a part of
	slot  int      // of the command's keys, noSlot without keys
	// routed says that the command may go to another primary if this one does not have the slot.
	routed bool
	script bool // its errors may be those of a script
	call   bool // it calls a function of the library
	reads  bool // it changes nothing, so it may be sent twice
	attempts
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
	// subscription says that the replies are those to SUBSCRIBE or a similar command, which are
	// pushes in RESP3.
	subscription bool
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
