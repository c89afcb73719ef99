package fakebroker

import (
	"context"
	"fmt"
	"time"
)

// Op is a request that a fault can strike.
type Op int

// The requests.
const (
	OpPartitions Op = iota // partition count of a topic
	OpLookup               // which broker serves a topic
	OpProducer             // create or reconnect a producer
	OpSend
	OpSubscribe // create or reconnect a consumer
	OpAck
	OpSeek
	OpDispatch // not a request: an entry on its way to a consumer
)

type faultKind int

const (
	faultFail faultKind = iota
	faultIgnore
	faultHold
	faultDropReceipt
	faultDuplicateReceipt
	faultSlow
	faultCorrupt
	faultDuplicateDispatch
)

// Always makes a fault strike until it is removed.
const Always = -1

// Fault is one rule that makes the server misbehave. Faults are added and removed while clients are
// connected; of several that fit, the one added first strikes.
type Fault struct {
	s     *Server
	kind  faultKind
	op    Op
	topic string
	left  int // negative: no limit
	code  ServerError
	text  string
	delay time.Duration
	hits  int

	unstored bool
	held     []*sending
}

// Hits returns how often the fault has struck.
func (f *Fault) Hits() int {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return f.hits
}

// Wait waits until the fault has struck at least n times.
func (f *Fault) Wait(ctx context.Context, n int) error {
	return f.s.waitCount(ctx, "strikes of the fault", n, f.Hits)
}

// Remove ends the fault. Sends that a slow partition delays arrive at once; receipts held back stay
// held.
func (f *Fault) Remove() {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	f.remove()
	f.s.notify()
}

func (f *Fault) remove() {
	for i, other := range f.s.rules {
		if other == f {
			f.s.rules = append(f.s.rules[:i:i], f.s.rules[i+1:]...)
			break
		}
	}
	if f.kind == faultSlow {
		for _, p := range f.s.logs(f.topic) {
			if n := len(p.slow); n > 0 {
				f.s.takeSlow(p, p.slow[n-1].due)
			}
		}
	}
}

func (s *Server) add(f *Fault) *Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	f.s = s
	if f.topic != "" {
		f.topic = canonical(f.topic)
	}
	s.rules = append(s.rules, f)
	return f
}

// strike returns the fault that hits this request, nil if none does.
func (s *Server) strike(name string, kind faultKind, op Op) *Fault {
	for _, f := range s.rules {
		if f.kind != kind || f.op != op || f.left == 0 || !covers(f.topic, name) {
			continue
		}
		if f.left > 0 {
			f.left--
		}
		f.hits++
		return f
	}
	return nil
}

// Fail answers the next n requests on the topic with an error. An error on OpSend is a SEND_ERROR.
func (s *Server) Fail(op Op, topic string, code ServerError, n int) *Fault {
	return s.add(&Fault{kind: faultFail, op: op, topic: topic, left: n, code: code, text: "made up by the fake broker"})
}

// FailLookup answers lookups with an error.
func (s *Server) FailLookup(topic string, code ServerError, n int) *Fault {
	return s.Fail(OpLookup, topic, code, n)
}

// FailProducerCreate answers producer creations, first ones and reconnections, with an error.
func (s *Server) FailProducerCreate(topic string, code ServerError, n int) *Fault {
	return s.Fail(OpProducer, topic, code, n)
}

// FailSubscribe answers subscriptions, first ones and reconnections, with an error.
func (s *Server) FailSubscribe(topic string, code ServerError, n int) *Fault {
	return s.Fail(OpSubscribe, topic, code, n)
}

// FailSend answers sends with an error and does not store them.
func (s *Server) FailSend(topic string, code ServerError, n int) *Fault {
	return s.Fail(OpSend, topic, code, n)
}

// FailAck answers acknowledgments with an error, if the client wants an answer, and does not carry
// them out.
func (s *Server) FailAck(topic string, code ServerError, n int) *Fault {
	return s.Fail(OpAck, topic, code, n)
}

// Ignore drops the next n requests: they have no effect and no answer.
func (s *Server) Ignore(op Op, topic string, n int) *Fault {
	return s.add(&Fault{kind: faultIgnore, op: op, topic: topic, left: n})
}

// DropReceipts stores the next n sends and never confirms them.
func (s *Server) DropReceipts(topic string, n int) *Fault {
	return s.add(&Fault{kind: faultDropReceipt, op: OpSend, topic: topic, left: n})
}

// DuplicateReceipts confirms the next n sends twice.
func (s *Server) DuplicateReceipts(topic string, n int) *Fault {
	return s.add(&Fault{kind: faultDuplicateReceipt, op: OpSend, topic: topic, left: n})
}

// SlowPartition makes every send take that long to be stored and confirmed. Sends stay in order and
// overlap: a delay is latency, not a rate.
func (s *Server) SlowPartition(partition string, delay time.Duration) *Fault {
	return s.add(&Fault{kind: faultSlow, op: OpSend, topic: partition, left: Always, delay: delay})
}

// CorruptDispatch breaks the checksum of the next n entries sent to consumers. The log keeps them
// intact.
func (s *Server) CorruptDispatch(topic string, n int) *Fault {
	return s.add(&Fault{kind: faultCorrupt, op: OpDispatch, topic: topic, left: n})
}

// DuplicateDispatch sends the next n entries for which a consumer has permits left to it twice.
func (s *Server) DuplicateDispatch(topic string, n int) *Fault {
	return s.add(&Fault{kind: faultDuplicateDispatch, op: OpDispatch, topic: topic, left: n})
}

// Hold is a fault that keeps receipts back until they are released.
type Hold struct{ *Fault }

// HoldReceipts stores sends and keeps their receipts back. Receipts for a producer that is gone
// when they are released are forgotten.
func (s *Server) HoldReceipts(topic string) *Hold {
	return &Hold{s.add(&Fault{kind: faultHold, op: OpSend, topic: topic, left: Always})}
}

// HoldEntries keeps sends back altogether: they are stored when they are released, and lost if
// their producer is gone by then.
func (s *Server) HoldEntries(topic string) *Hold {
	return &Hold{s.add(&Fault{kind: faultHold, op: OpSend, topic: topic, left: Always, unstored: true})}
}

// Held returns how many receipts are held back now.
func (h *Hold) Held() int {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return len(h.held)
}

// Release ends the fault and sends all receipts held back, in order. It returns how many went out.
func (h *Hold) Release() int {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	h.remove()
	return h.releaseLocked(indexes(len(h.held))...)
}

// ReleaseNext sends the first n receipts held back and keeps holding.
func (h *Hold) ReleaseNext(n int) int {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.releaseLocked(indexes(min(n, len(h.held)))...)
}

// ReleaseOnly sends the receipts at these positions among those held, in the order given, and keeps
// holding the others: this is how receipts get out of order.
func (h *Hold) ReleaseOnly(positions ...int) int {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	return h.releaseLocked(positions...)
}

// Forget drops the receipts held back and keeps holding.
func (h *Hold) Forget() int {
	h.s.mu.Lock()
	defer h.s.mu.Unlock()
	n := len(h.held)
	h.held = nil
	h.s.notify()
	return n
}

func (h *Hold) releaseLocked(positions ...int) int {
	sent := 0
	released := map[int]bool{}
	for _, i := range positions {
		if i < 0 || i >= len(h.held) {
			panic(fmt.Sprintf("wire: no receipt at position %d, %d are held", i, len(h.held)))
		}
		snd := h.held[i]
		released[i] = true
		if !snd.stored && !snd.pr.closed {
			h.s.store(snd)
		}
		if snd.stored && snd.receipt() {
			sent++
		}
	}
	var left []*sending
	for i, snd := range h.held {
		if !released[i] {
			left = append(left, snd)
		}
	}
	h.held = left
	h.s.notify()
	return sent
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// CloseProducers closes the topic's producers by command, as a broker does that unloads the topic.
// Clients reconnect them on the same connection. It returns how many there were.
func (s *Server) CloseProducers(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.logs(topic) {
		for pr := range p.producers {
			pr.disconnect()
			n++
		}
	}
	s.notify()
	return n
}

// CloseConsumers closes the topic's consumers by command.
func (s *Server) CloseConsumers(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*consumer
	for _, p := range s.logs(topic) {
		for _, sub := range p.subs {
			all = append(all, sub.consumers...)
		}
	}
	// Collected first: while they go one by one, what they held would be dispatched to the next to
	// go.
	for _, co := range all {
		co.permits = 0
	}
	for _, co := range all {
		co.disconnect()
	}
	s.notify()
	return len(all)
}

// CutConnections closes all client connections. It returns how many there were.
func (s *Server) CutConnections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.notify()
	return s.cut(func(*conn) bool { return true })
}

// LoseAcks makes the acknowledgments of the topic's present consumers go missing from now on, as
// those do that are on their way when a connection breaks: cut it, or close the consumers,
// afterwards. Consumers that come later are heard. It returns how many there were.
func (s *Server) LoseAcks(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.logs(topic) {
		for _, sub := range p.subs {
			for _, co := range sub.consumers {
				co.deaf = true
				n++
			}
		}
	}
	return n
}

// ChangeActive makes another of the connected consumers active on every partition of a Failover
// subscription: it is sent everything that is not acknowledged. It returns how many partitions
// changed hands.
func (s *Server) ChangeActive(topic, sub string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.eachSub(topic, sub, func(sub *subscription) {
		if sub.kind != subscriptionFailover || len(sub.consumers) < 2 {
			return
		}
		old := sub.consumers[0]
		sub.consumers = append(sub.consumers[1:len(sub.consumers):len(sub.consumers)], old)
		sub.giveBack(old, nil)
		sub.elect()
		sub.dispatch()
		n++
	})
	s.notify()
	return n
}

// Fence closes the topic's producers as one does that takes the topic over by force (access mode
// ExclusiveWithFencing), writes the messages to every partition, and leaves: producers with a claim
// on the topic find themselves fenced when they come back, shared ones do not.
func (s *Server) Fence(topic string, messages ...Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.logs(topic) {
		for pr := range p.producers {
			pr.disconnect()
		}
		p.epoch++
		for _, m := range messages {
			s.publish(p, []Message{m}, None, false)
		}
	}
	s.notify()
}

// RefuseConnections makes the server close new connections before the handshake. The port stays
// bound, so that no other process can take it.
func (s *Server) RefuseConnections(refuse bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.refuse = refuse
}

// Stall makes the server read nothing from its clients while their connections stay open, like a
// broker in a long garbage collection: every connection handles at most one more command. Resume
// ends it.
func (s *Server) Stall() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stalled == nil && !s.closed {
		s.stalled = make(chan struct{})
	}
}

// Resume ends a Stall.
func (s *Server) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resume()
}

func (s *Server) resume() {
	if s.stalled != nil {
		close(s.stalled)
		s.stalled = nil
	}
}

// PingClients sends a PING to every client; their answers count as Received(CommandPong).
func (s *Server) PingClients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.send(CommandPing, nil)
	}
	return len(s.conns)
}
