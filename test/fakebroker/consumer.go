package fakebroker

import (
	"context"
	"fmt"
	"math/bits"
)

// consumer is one consumer of one partition on one connection.
type consumer struct {
	c       *conn
	id      uint64
	name    string
	sub     *subscription
	permits int
	// told is whether a failover client knows if it is active, active what it was told.
	told, active bool
	// dispatched counts the messages sent to this consumer.
	dispatched int
	// unacked holds the positions of the entries sent and not acknowledged.
	unacked map[int]struct{}
	// deaf consumers' acknowledgments are lost, see LoseAcks.
	deaf bool
}

// ConsumerInfo describes a connected consumer.
type ConsumerInfo struct {
	Topic string
	Name  string
	ID    uint64
	// Permits is how many messages the consumer still allows; a batch may have taken it below zero.
	Permits int
	// Dispatched counts the messages sent to it.
	Dispatched int
	// Unacked counts the messages it holds without having acknowledged them.
	Unacked int
}

// Consumers lists the connected consumers of a subscription, "" for all of them (readers choose
// their names), partition after partition in the order they came.
func (s *Server) Consumers(topic, sub string) []ConsumerInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ConsumerInfo
	s.eachSub(topic, sub, func(sub *subscription) {
		for _, co := range sub.consumers {
			unacked := 0
			for i := range co.unacked {
				unacked += sub.remaining(i)
			}
			out = append(out, ConsumerInfo{
				Topic: sub.p.name, Name: co.name, ID: co.id,
				Permits: co.permits, Dispatched: co.dispatched, Unacked: unacked,
			})
		}
	})
	return out
}

// WaitConsumers waits until exactly n consumers of the subscription are connected.
func (s *Server) WaitConsumers(ctx context.Context, topic, sub string, n int) error {
	return s.Until(ctx, func() bool { return len(s.Consumers(topic, sub)) == n })
}

// Unacked counts the messages that are with a consumer and not acknowledged.
func (s *Server) Unacked(topic, sub string) int {
	n := 0
	for _, co := range s.Consumers(topic, sub) {
		n += co.Unacked
	}
	return n
}

// Acked counts the messages of the log that the subscription will not deliver again.
func (s *Server) Acked(topic, sub string) int {
	return s.countLog(topic, sub, true)
}

// Backlog counts the messages of the log that the subscription has not acknowledged, delivered or
// not.
func (s *Server) Backlog(topic, sub string) int {
	return s.countLog(topic, sub, false)
}

// WaitAcked waits until at least n messages are acknowledged.
func (s *Server) WaitAcked(ctx context.Context, topic, sub string, n int) error {
	what := fmt.Sprintf("acknowledged messages on %s/%s", topic, sub)
	return s.waitCount(ctx, what, n, func() int { return s.Acked(topic, sub) })
}

func (s *Server) countLog(topic, sub string, acked bool) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	s.eachSub(topic, sub, func(sub *subscription) {
		for i := range sub.p.entries {
			left := sub.remaining(i)
			if acked {
				left = sub.p.entries[i].messages - left
			}
			n += left
		}
	})
	return n
}

func (s *Server) eachSub(topic, name string, fn func(*subscription)) {
	for _, p := range s.logs(topic) {
		for _, sub := range p.subs {
			if name == "" || sub.name == name {
				fn(sub)
			}
		}
	}
}

// remove takes the consumer off its subscription and offers its unacknowledged entries to the
// others.
func (co *consumer) remove() {
	sub := co.sub
	delete(co.c.consumers, co.id)
	for i, other := range sub.consumers {
		if other == co {
			sub.consumers = append(sub.consumers[:i:i], sub.consumers[i+1:]...)
			break
		}
	}
	if !sub.durable && len(sub.consumers) == 0 {
		delete(sub.p.subs, sub.name)
		return
	}
	sub.giveBack(co, nil)
	sub.elect()
	sub.dispatch()
}

// disconnect closes the consumer from the server's side: CommandCloseConsumer: consumer_id = 1,
// request_id = 2.
func (co *consumer) disconnect() {
	// The command goes first: remove may dispatch to the next consumer, perhaps on the same
	// connection.
	co.c.send(CommandCloseConsumer, message(nil).num(1, co.id).num(2, noID))
	co.remove()
}

func (c *conn) subscribe(body []byte) error {
	r, err := decodeSubscribeRequest(body)
	if err != nil {
		return err
	}
	name := canonical(r.topic)
	if c.s.strike(name, faultIgnore, OpSubscribe) != nil {
		return nil
	}
	if f := c.s.strike(name, faultFail, OpSubscribe); f != nil {
		c.sendError(r.requestID, f.code, f.text)
		return nil
	}
	if c.consumers[r.id] != nil {
		// The client has reconnected twice. As at the broker, the consumer stays as it is: nothing
		// is sent to it again.
		c.sendSuccess(r.requestID)
		return nil
	}
	p := c.s.partition(name, r.create)
	if p == nil {
		c.sendError(r.requestID, TopicNotFound, "no topic "+name)
		return nil
	}
	sub := p.subs[r.subscription]
	if sub == nil {
		sub = newSubscription(p, r)
		p.subs[r.subscription] = sub
	}
	if len(sub.consumers) > 0 && sub.kind != r.kind {
		c.sendError(r.requestID, ConsumerBusy, "the subscription is of another type")
		return nil
	}
	if sub.kind = r.kind; sub.kind == subscriptionExclusive && len(sub.consumers) > 0 {
		old := sub.consumers[0]
		if old.name != r.name {
			c.sendError(r.requestID, ConsumerBusy, "Exclusive consumer is already connected")
			return nil
		}
		// The same consumer has come back before its old connection was seen to be gone.
		durable := sub.durable
		sub.durable = true // do not let remove delete the subscription under us
		old.remove()
		sub.durable = durable
	}
	co := &consumer{c: c, id: r.id, name: r.name, sub: sub, unacked: map[int]struct{}{}}
	sub.consumers = append(sub.consumers, co)
	c.consumers[co.id] = co
	c.sendSuccess(r.requestID)
	sub.elect()
	return nil
}

func (c *conn) flow(body []byte) error {
	r, err := decodeIDRequest(body)
	if err != nil {
		return err
	}
	if co := c.consumers[r.id]; co != nil {
		co.permits += int(uint32(r.value))
		co.sub.dispatch()
	}
	return nil
}

// ack answers with CommandAckResponse, if one is wanted: consumer_id = 1, error = 4, message = 5,
// request_id = 6.
func (c *conn) ack(body []byte) error {
	r, err := decodeAckRequest(body)
	if err != nil {
		return err
	}
	co := c.consumers[r.id]
	if co == nil {
		return nil
	}
	name := co.sub.p.name
	if co.deaf || c.s.strike(name, faultIgnore, OpAck) != nil {
		return nil
	}
	response := message(nil).num(1, r.id)
	if f := c.s.strike(name, faultFail, OpAck); f != nil {
		response = response.num(4, uint64(f.code)).str(5, f.text)
	} else {
		for _, id := range r.messages {
			co.sub.ack(id, r.cumulative)
		}
	}
	if r.wantResponse {
		c.send(CommandAckResponse, response.num(6, r.requestID))
	}
	// A Key_Shared or Shared consumer may now take entries that were given back.
	co.sub.dispatch()
	return nil
}

func (c *conn) redeliver(body []byte) error {
	r, err := decodeRedeliverRequest(body)
	if err != nil {
		return err
	}
	co := c.consumers[r.id]
	if co == nil {
		return nil
	}
	if co.sub.kind == subscriptionExclusive || co.sub.kind == subscriptionFailover {
		// To keep the order, the broker rewinds to the first unacknowledged entry whatever ids were
		// asked for.
		r.messages = nil
	}
	co.sub.giveBack(co, r.messages)
	co.sub.dispatch()
	return nil
}

func (c *conn) unsubscribe(body []byte) error {
	r, err := decodeIDRequest(body)
	if err != nil {
		return err
	}
	co := c.consumers[r.id]
	if co == nil {
		c.sendError(r.value, ConsumerNotFound, "no such consumer")
		return nil
	}
	sub := co.sub
	co.remove()
	if len(sub.consumers) == 0 {
		delete(sub.p.subs, sub.name)
	}
	c.sendSuccess(r.value)
	return nil
}

func (c *conn) closeConsumer(body []byte) error {
	r, err := decodeIDRequest(body)
	if err != nil {
		return err
	}
	if co := c.consumers[r.id]; co != nil {
		co.remove()
	}
	c.sendSuccess(r.value)
	return nil
}

// seek moves the subscription and, as the broker does, disconnects its consumers, who come back for
// the new position.
func (c *conn) seek(body []byte) error {
	r, err := decodeSeekRequest(body)
	if err != nil {
		return err
	}
	co := c.consumers[r.id]
	if co == nil {
		c.sendError(r.requestID, ConsumerNotFound, "no such consumer")
		return nil
	}
	sub := co.sub
	if f := c.s.strike(sub.p.name, faultFail, OpSeek); f != nil {
		c.sendError(r.requestID, f.code, f.text)
		return nil
	}
	to := len(sub.p.entries)
	if r.message != nil {
		to = max(sub.p.position(*r.message), 0)
	} else {
		for i, e := range sub.p.entries {
			if toMillis(e.publishTime) >= r.millis {
				to = i
				break
			}
		}
	}
	sub.reset(to)
	for _, co := range append([]*consumer(nil), sub.consumers...) {
		co.unacked = map[int]struct{}{}
		co.disconnect()
	}
	if sub.p.subs[sub.name] == nil {
		sub.p.subs[sub.name] = sub
	}
	c.sendSuccess(r.requestID)
	return nil
}

// lastMessageID answers with CommandGetLastMessageIdResponse: last_message_id = 1, request_id = 2,
// consumer_mark_delete_position = 3.
func (c *conn) lastMessageID(body []byte) error {
	r, err := decodeIDRequest(body)
	if err != nil {
		return err
	}
	co := c.consumers[r.id]
	if co == nil {
		c.sendError(r.value, ConsumerNotFound, "no such consumer")
		return nil
	}
	p := co.sub.p
	last := messageID{ledger: noID, entry: noID, partition: int32(p.index), batchIndex: -1}
	mark := last
	if n := len(p.entries); n > 0 {
		last = p.id(n - 1)
		if m := p.entries[n-1].messages; m > 1 {
			last.batchIndex = int32(m - 1)
		}
	}
	if first := co.sub.firstUnacked(); first > 0 {
		mark = p.id(first - 1)
	}
	c.send(CommandGetLastMessageIDResponse,
		message(nil).bytes(1, last.encode()).num(2, r.value).bytes(3, mark.encode()))
	return nil
}

// onesCount counts the messages of a batch that an ack set leaves unacknowledged.
func onesCount(set []uint64) int {
	n := 0
	for _, word := range set {
		n += bits.OnesCount64(word)
	}
	return n
}
