package proxy

import "github.com/aviaryhq/aviary/internal/sonic/command"

// pending is a reply that is due on a connection to Redis, in its order.
type pending struct {
	client *client          // whose command it is; nil for the proxy's own
	cmd    *command.Command // nil for the proxy's own
	then   *handling        // nil for replies that are relayed as they are
	start  uint64           // where the command begins in all that was queued on the connection
	kind   replyKind
	many   uint8 // so many writes, of which this is the first, have one reply
	// emptyArray: nothing is told by RESP2's null array.
	emptyArray bool
	// messages may come before the reply: the client had subscriptions.
	messages bool
}

type replyKind uint8

const (
	relayed   replyKind = iota // as it is
	function                   // of a function: nulls are mended, errors of the library translated
	published                  // of a function, with the id of its effect
	local                      // the proxy's own answer, which waits its turn; nothing comes from Redis
	handled                    // given to a function of the proxy
)

// handling is what becomes of an unusual reply.
type handling struct {
	answer []byte // of local
	// replies that Redis gives to what was sent; 0 means 1.
	replies int
	// each takes one reply after the other. Its argument is not valid after it returns.
	each func(reply []byte)
	// lost is called instead when the connection ended. sent tells whether Redis may have seen the command.
	lost func(sent bool)
	// here: the command is for this connection only. It is not sent on the next one.
	here bool
	// subscriptions are replies to SUBSCRIBE and its kin, which are pushes in RESP3.
	subscription bool
}

// fifo is a queue in a ring that grows.
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
