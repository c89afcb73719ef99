package fakebroker

import (
	"hash/fnv"
	"sort"
)

// subscription is one cursor over one partition and the consumers that share it.
type subscription struct {
	p       *partition
	name    string
	kind    int
	durable bool
	// next is the first entry never dispatched.
	next int
	// acked holds the acknowledged entries at or after markDelete; everything before markDelete is
	// acknowledged.
	acked      map[int]struct{}
	markDelete int
	// partial holds, for batches acknowledged in part, the bits of the messages that are left.
	partial map[int][]uint64
	// replay holds entries to dispatch again, in order, before next.
	replay []int
	// redeliveries counts, per entry, how often it was given back.
	redeliveries map[int]int
	consumers    []*consumer
	turn         int
	// keys says who has unacknowledged entries of a key, on Key_Shared.
	keys map[string]keyHolder
}

// keyHolder has a number of unacknowledged entries of one key.
type keyHolder struct {
	co      *consumer
	entries int
}

// lend notes that an entry is with a consumer.
func (sub *subscription) lend(co *consumer, i int) {
	if _, again := co.unacked[i]; again {
		return
	}
	co.unacked[i] = struct{}{}
	if sub.kind == subscriptionKeyShared {
		key := sub.p.entries[i].key
		sub.keys[key] = keyHolder{co: co, entries: sub.keys[key].entries + 1}
	}
}

// takeBack notes that an entry is with the consumer no more. It reports whether it was.
func (sub *subscription) takeBack(co *consumer, i int) bool {
	if _, ok := co.unacked[i]; !ok {
		return false
	}
	delete(co.unacked, i)
	if sub.kind == subscriptionKeyShared {
		key := sub.p.entries[i].key
		h := sub.keys[key]
		if h.entries--; h.entries > 0 {
			sub.keys[key] = h
		} else {
			delete(sub.keys, key)
		}
	}
	return true
}

func newSubscription(p *partition, r subscribeRequest) *subscription {
	sub := &subscription{p: p, name: r.subscription, durable: r.durable}
	start := len(p.entries)
	switch {
	case !r.durable && r.start != nil:
		// A reader names the message it has read last. Of a batch it may have read only a part, so
		// the batch is sent again and the client skips what it knows.
		start = p.position(*r.start)
		if start < len(p.entries) && (start < 0 || r.start.batchIndex < 0) {
			start++
		}
	case r.earliest:
		start = 0
	}
	sub.reset(start)
	return sub
}

// reset moves the cursor: everything before is acknowledged, nothing from there on is.
func (sub *subscription) reset(to int) {
	sub.next, sub.markDelete = to, to
	sub.acked = map[int]struct{}{}
	sub.partial = map[int][]uint64{}
	sub.redeliveries = map[int]int{}
	sub.replay = nil
	sub.keys = map[string]keyHolder{}
}

func (sub *subscription) isAcked(i int) bool {
	_, ok := sub.acked[i]
	return ok || i < sub.markDelete
}

// remaining counts the messages of an entry that are not acknowledged.
func (sub *subscription) remaining(i int) int {
	if sub.isAcked(i) {
		return 0
	}
	if set, ok := sub.partial[i]; ok {
		return onesCount(set)
	}
	return sub.p.entries[i].messages
}

func (sub *subscription) firstUnacked() int { return sub.markDelete }

// ack acknowledges an entry, what its ack set says of a batch, or with cumulative everything up to
// it.
func (sub *subscription) ack(id messageID, cumulative bool) {
	i := sub.p.position(id)
	if i < 0 || i >= len(sub.p.entries) {
		return
	}
	if cumulative {
		for j := sub.markDelete; j < i; j++ {
			sub.ackEntry(j)
		}
	}
	if onesCount(id.ackSet) > 0 {
		if sub.isAcked(i) {
			return
		}
		left := append([]uint64(nil), id.ackSet...)
		for w, word := range sub.partial[i] {
			if w < len(left) {
				left[w] &= word
			}
		}
		if onesCount(left) > 0 {
			sub.partial[i] = left
			return
		}
	}
	sub.ackEntry(i)
}

func (sub *subscription) ackEntry(i int) {
	if sub.isAcked(i) {
		return
	}
	sub.acked[i] = struct{}{}
	delete(sub.partial, i)
	delete(sub.redeliveries, i)
	for _, co := range sub.consumers {
		sub.takeBack(co, i)
	}
	for {
		if _, ok := sub.acked[sub.markDelete]; !ok {
			break
		}
		delete(sub.acked, sub.markDelete)
		sub.markDelete++
	}
	sub.next = max(sub.next, sub.markDelete)
}

// giveBack queues a consumer's unacknowledged entries for dispatch again: those with the given ids,
// or all.
func (sub *subscription) giveBack(co *consumer, ids []messageID) {
	var back []int
	if ids == nil {
		for i := range co.unacked {
			back = append(back, i)
		}
	} else {
		for _, id := range ids {
			if i := sub.p.position(id); i >= 0 {
				if _, ok := co.unacked[i]; ok {
					back = append(back, i)
				}
			}
		}
	}
	for _, i := range back {
		if !sub.takeBack(co, i) {
			continue // named twice
		}
		sub.redeliveries[i]++
		sub.replay = append(sub.replay, i)
	}
	sort.Ints(sub.replay)
}

// elect tells failover consumers which of them is active: CommandActiveConsumerChange: consumer_id
// = 1, is_active = 2.
func (sub *subscription) elect() {
	if sub.kind != subscriptionFailover {
		return
	}
	for i, co := range sub.consumers {
		active := i == 0
		if co.told && co.active == active {
			continue
		}
		co.told, co.active = true, active
		co.c.send(CommandActiveConsumerChange, message(nil).num(1, co.id).flag(2, active))
	}
}

// dispatch sends as much as the consumers' permits allow.
func (sub *subscription) dispatch() {
	if len(sub.consumers) == 0 {
		return
	}
	// What was given back goes first. An entry that nobody can take now keeps its place; except on
	// Key_Shared, where one key waits without holding up the others, no later entry may pass it.
	var kept []int
	blocked := map[*consumer]bool{}
	for n, i := range sub.replay {
		if sub.isAcked(i) {
			continue
		}
		co := sub.choose(i, blocked)
		if co == nil {
			kept = append(kept, i)
			if sub.kind != subscriptionKeyShared {
				kept = append(kept, sub.replay[n+1:]...)
				break
			}
			continue
		}
		sub.deliver(co, i)
	}
	sub.replay = kept
	if len(kept) > 0 && sub.kind != subscriptionKeyShared {
		return
	}
	for sub.next < len(sub.p.entries) {
		i := sub.next
		if sub.isAcked(i) {
			sub.next++
			continue
		}
		co := sub.choose(i, blocked)
		if co == nil {
			if sub.kind != subscriptionKeyShared || len(blocked) == len(sub.consumers) {
				return
			}
			// Step over it; it stays first among the entries of its consumer.
			sub.replay = append(sub.replay, i)
			sub.next++
			continue
		}
		sub.next++
		sub.deliver(co, i)
	}
}

// choose returns the consumer to send an entry to now, nil if it must wait. Key_Shared consumers
// without permits are noted in blocked.
func (sub *subscription) choose(i int, blocked map[*consumer]bool) *consumer {
	n := len(sub.consumers)
	switch sub.kind {
	case subscriptionShared:
		for range n {
			co := sub.consumers[sub.turn%n]
			sub.turn++
			if co.permits > 0 {
				return co
			}
		}
		return nil
	case subscriptionKeyShared:
		h := fnv.New32a()
		_, _ = h.Write([]byte(sub.p.entries[i].key))
		co := sub.consumers[h.Sum32()%uint32(n)]
		if holder, lent := sub.keys[sub.p.entries[i].key]; lent && holder.co != co {
			// The key has moved to co while another still has messages of it: it waits for their
			// acknowledgments.
			return nil
		}
		if co.permits > 0 && !blocked[co] {
			return co
		}
		blocked[co] = true
		return nil
	}
	if co := sub.consumers[0]; co.permits > 0 {
		return co
	}
	return nil
}

// deliver sends an entry: CommandMessage: consumer_id = 1, message_id = 2, redelivery_count = 3,
// ack_set = 4.
func (sub *subscription) deliver(co *consumer, i int) {
	n := sub.remaining(i)
	co.permits -= n
	co.dispatched += n
	sub.lend(co, i)
	co.c.s.noteDispatch(co, i)

	raw := sub.p.entries[i].raw
	s := co.c.s
	if s.strike(sub.p.name, faultCorrupt, OpDispatch) != nil {
		raw = corrupted(raw)
	}
	m := message(nil).num(1, co.id).bytes(2, sub.p.id(i).encode())
	if sub.kind == subscriptionShared || sub.kind == subscriptionKeyShared {
		// With a single active consumer the broker does not count.
		m = m.num(3, uint64(sub.redeliveries[i]))
	}
	for _, word := range sub.partial[i] {
		m = m.num(4, word)
	}
	co.c.sendEntry(CommandMessage, m, raw)
	// Beyond its permits a consumer's queue may be full, and then the client stops reading from the
	// connection. A broker never sends that.
	if co.permits >= n && s.strike(sub.p.name, faultDuplicateDispatch, OpDispatch) != nil {
		co.permits -= n
		co.c.sendEntry(CommandMessage, m, raw)
	}
}
