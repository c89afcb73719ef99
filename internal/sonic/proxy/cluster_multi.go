package proxy

import (
	"bytes"

	"github.com/aviaryhq/aviary/internal/sonic/command"
	"github.com/aviaryhq/aviary/internal/sonic/resp"
)

// In front of a Redis Cluster all keys of a transaction are in one slot, and it goes to the primary
// of that slot as a whole.

// addToCluster adds the slot of a command to the transaction. It returns an error for a command that
// cannot be part of it.
func (tx *transaction) addToCluster(cmd *command.Command, slot int) (problem string) {
	if ofAllPrimaries(cmd) {
		return "ERR Sonic refuses '" + cmd.Name + "' inside a transaction: it concerns all primaries of the cluster"
	}
	var same bool
	if tx.slot, same = joinSlots(tx.slot, slot); !same {
		return errCrossSlot
	}
	return ""
}

// clusterExecution is what a transaction in front of a Redis Cluster needs to be sent again.
type clusterExecution struct {
	slot        int
	redirection *redirection // in the replies
	attempts
	watched bool // it runs on the client's own connection, after WATCH

	// With Config.Replicate only:

	guarded bool   // moveGuard is in it
	waited  bool   // it is among client.waiting
	script  bool   // it is a script outside a transaction
	refusal []byte // the first error before that of EXEC, of a script: EXEC does not say which
}

// noteRedirection keeps the first redirection in the replies: Redis has then discarded the
// transaction.
func (e *execution) noteRedirection(reply []byte) {
	if e.script && e.refusal == nil && reply[0] == '-' && e.seen < e.sent+2 {
		e.refusal = bytes.Clone(reply)
	}
	if e.redirection != nil {
		return
	}
	if to, ok := redirectionOf(reply, e.b.primary); ok {
		e.redirection = &to
	}
}

// sendAgain sends the transaction to the primary that has the slot now, or again after a pause. It
// returns false if it may not.
func (e *execution) sendAgain() bool {
	c, l, order, to := e.c, e.c.loop, e.c.replies.current, *e.redirection
	e.redirection = nil
	l.cfg.Cluster.Refresh()
	// ASK would have to precede each command. The slot has moved soon.
	if !to.asking && e.mayFollow(to) {
		e.send(l.connectionTo(to.address, 0, c.proto), order)
		return true
	}
	order.parts++ // the reply is not complete while the transaction waits
	c.outstanding++
	done := func() { order.parts--; c.outstanding-- }
	if !c.waitForCluster(&e.attempts, func() { e.send(l.primaryOf(e.slot, c.proto), order); done() }) {
		done()
		return false
	}
	return true
}

// movingAbort returns the answer to EXEC when its slot moves.
func movingAbort() []byte {
	return resp.AppendError(nil, "EXECABORT Transaction discarded because of: "+errMoving)
}
