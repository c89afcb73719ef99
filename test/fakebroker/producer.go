package fakebroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"time"
)

// producer is one producer of one partition on one connection.
type producer struct {
	c         *conn
	id        uint64
	p         *partition
	name      string
	generated bool
	epoch     uint64
	access    int
	// closed producers get no more receipts: what was held back for them is forgotten.
	closed bool
	sends  int
}

// ProducerInfo describes a connected producer.
type ProducerInfo struct {
	Topic string
	Name  string
	ID    uint64
	// Epoch is how often this client has reconnected it.
	Epoch uint64
	// Sends counts the SEND commands of this incarnation.
	Sends int
}

// Producers lists the connected producers of a topic, partition after partition.
func (s *Server) Producers(topic string) []ProducerInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []ProducerInfo
	for _, p := range s.logs(topic) {
		first := len(out)
		for pr := range p.producers {
			out = append(out, ProducerInfo{Topic: p.name, Name: pr.name, ID: pr.id, Epoch: pr.epoch, Sends: pr.sends})
		}
		sort.Slice(out[first:], func(i, j int) bool { return out[first+i].ID < out[first+j].ID })
	}
	return out
}

// WaitingProducers is how many producers wait for the topic to have no other.
func (s *Server) WaitingProducers(topic string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.logs(topic) {
		n += len(p.waiting)
	}
	return n
}

// WaitProducers waits until exactly n producers of the topic are connected.
func (s *Server) WaitProducers(ctx context.Context, topic string, n int) error {
	return s.Until(ctx, func() bool { return len(s.Producers(topic)) == n })
}

func (pr *producer) remove() {
	pr.closed = true
	delete(pr.p.producers, pr)
	delete(pr.c.producers, pr.id)
	p := pr.p
	p.waiting = slices.DeleteFunc(p.waiting, func(w waitingProducer) bool { return w.pr == pr || w.pr.c.closed })
	if len(p.producers) == 0 && len(p.waiting) > 0 {
		next := p.waiting[0]
		p.waiting = p.waiting[1:]
		// As the broker does: one that waited is let in whatever its epoch.
		p.take(next.pr, next.r)
		next.pr.c.producerSuccess(next.pr, next.r, true)
	}
}

// waitingProducer is a producer that waits until the topic has no other.
type waitingProducer struct {
	pr *producer
	r  producerRequest
}

// take makes pr the exclusive producer of p.
func (p *partition) take(pr *producer, r producerRequest) {
	if !r.hasEpoch {
		p.epoch++
	}
	p.producers[pr] = struct{}{}
}

// disconnect closes the producer from the server's side: CommandCloseProducer: producer_id = 1,
// request_id = 2.
func (pr *producer) disconnect() {
	pr.remove()
	pr.c.send(CommandCloseProducer, message(nil).num(1, pr.id).num(2, noID))
}

// createProducer answers with CommandProducerSuccess: request_id = 1, producer_name = 2,
// last_sequence_id = 3, schema_version = 4, topic_epoch = 5, producer_ready = 6.
func (c *conn) createProducer(body []byte) error {
	r, err := decodeProducerRequest(body)
	if err != nil {
		return err
	}
	name := canonical(r.topic)
	if c.s.strike(name, faultIgnore, OpProducer) != nil {
		return nil
	}
	if f := c.s.strike(name, faultFail, OpProducer); f != nil {
		c.sendError(r.requestID, f.code, f.text)
		return nil
	}
	p := c.s.partition(name, true)
	if p == nil {
		c.sendError(r.requestID, TopicNotFound, "no topic "+name)
		return nil
	}
	pr := &producer{
		c: c, id: r.id, p: p, name: r.name, generated: r.name == "" || !r.userProvided, epoch: r.epoch, access: r.access,
	}
	if pr.name == "" {
		c.s.names++
		pr.name = fmt.Sprintf("wire-%d", c.s.names)
	}
	if code, text := p.admit(pr, r); code != UnknownError {
		c.sendError(r.requestID, code, text)
		return nil
	}
	c.producers[pr.id] = pr
	if pr.access == accessWaitForExclusive && len(p.producers) > 0 {
		p.waiting = append(p.waiting, waitingProducer{pr, r})
		c.producerSuccess(pr, r, false)
		return nil
	}
	if pr.access == accessShared {
		p.producers[pr] = struct{}{}
	} else {
		p.take(pr, r)
	}
	c.producerSuccess(pr, r, true)
	return nil
}

// producerSuccess tells a producer that it is connected, or that it has to wait.
func (c *conn) producerSuccess(pr *producer, r producerRequest, ready bool) {
	p := pr.p
	last := noID
	if seq, ok := p.lastSequence[pr.name]; ok && c.s.dedup {
		last = seq
	}
	m := message(nil).num(1, r.requestID).str(2, pr.name).num(3, last)
	m = m.bytes(4, p.topic.addSchema(r.schema)).num(5, p.epoch).flag(6, ready)
	c.send(CommandProducerSuccess, m)
}

// admit makes room for a producer or tells why there is none.
func (p *partition) admit(pr *producer, r producerRequest) (ServerError, string) {
	for old := range p.producers {
		if old.name != pr.name {
			continue
		}
		again := old.id == pr.id && old.epoch < pr.epoch || old.c == pr.c && old.id == pr.id
		if !again && !(old.generated && pr.generated) {
			return ProducerBusy, fmt.Sprintf("producer with name %q is already connected", pr.name)
		}
		old.remove()
	}
	free := pr.access != accessWaitForExclusive || len(p.producers) == 0
	if pr.access != accessShared && free && r.hasEpoch && r.topicEpoch < p.epoch {
		return ProducerFenced, "the topic's epoch has moved on"
	}
	switch pr.access {
	case accessShared:
		for old := range p.producers {
			if old.access != accessShared {
				return ProducerBusy, "the topic has an exclusive producer"
			}
		}
	case accessExclusive:
		if len(p.producers) > 0 {
			return ProducerFenced, "the topic has a producer"
		}
	case accessWaitForExclusive:
	case accessExclusiveWithFencing:
		for old := range p.producers {
			old.disconnect()
		}
	default:
		return NotAllowedError, "access mode is not supported by the fake broker"
	}
	return UnknownError, ""
}

func (c *conn) closeProducer(body []byte) error {
	r, err := decodeIDRequest(body)
	if err != nil {
		return err
	}
	if pr := c.producers[r.id]; pr != nil {
		pr.remove()
	}
	c.sendSuccess(r.value)
	return nil
}

// sending is one SEND on its way through the faults.
type sending struct {
	pr    *producer
	seq   uint64
	entry *entry
	// id is the receipt's, once the entry is stored.
	id     messageID
	stored bool
}

// receive takes one SEND.
func (c *conn) receive(body, raw []byte) error {
	r, err := decodeSendRequest(body)
	if err != nil {
		return err
	}
	pr := c.producers[r.producerID]
	if pr == nil {
		// The client may have sent this before it read our CLOSE_PRODUCER. The broker drops it too.
		return nil
	}
	pr.sends++
	s, name := c.s, pr.p.name
	if s.strike(name, faultIgnore, OpSend) != nil {
		return nil
	}
	if f := s.strike(name, faultFail, OpSend); f != nil {
		pr.sendError(r.sequenceID, f.code, f.text)
		return nil
	}
	metaBytes, _, err := splitEntry(raw)
	if errors.Is(err, errChecksum) {
		pr.sendError(r.sequenceID, ChecksumError, err.Error())
		return nil
	}
	if err != nil {
		return err
	}
	meta, err := decodeEntryMetadata(metaBytes)
	if err != nil {
		return fmt.Errorf("decode metadata: %w", err)
	}
	snd := &sending{pr: pr, seq: r.sequenceID, entry: newEntry(raw, meta.Message, r.messages)}
	if s.delay(snd) {
		return nil
	}
	s.arrive(snd)
	return nil
}

// arrive stores an entry and sends its receipt, unless a fault has it otherwise.
func (s *Server) arrive(snd *sending) {
	name := snd.pr.p.name
	hold := s.strike(name, faultHold, OpSend)
	if hold == nil || !hold.unstored {
		s.store(snd)
	}
	if hold != nil {
		hold.held = append(hold.held, snd)
		return
	}
	if s.strike(name, faultDropReceipt, OpSend) != nil {
		return
	}
	snd.receipt()
	if s.strike(name, faultDuplicateReceipt, OpSend) != nil {
		snd.receipt()
	}
}

func (s *Server) store(snd *sending) {
	snd.stored = true
	p, name := snd.pr.p, snd.pr.name
	last, known := p.lastSequence[name]
	if s.dedup && known && snd.seq <= last {
		snd.id = messageID{ledger: noID, entry: noID, partition: int32(p.index), batchIndex: -1}
		return
	}
	if !known || snd.seq > last {
		p.lastSequence[name] = snd.seq
	}
	snd.id = p.append(snd.entry)
}

// receipt is CommandSendReceipt: producer_id = 1, sequence_id = 2, message_id = 3. It reports
// whether there was still somebody to send it to.
func (snd *sending) receipt() bool {
	pr := snd.pr
	if pr.closed {
		return false
	}
	pr.c.send(CommandSendReceipt, message(nil).num(1, pr.id).num(2, snd.seq).bytes(3, snd.id.encode()))
	return true
}

// sendError is CommandSendError: producer_id = 1, sequence_id = 2, error = 3, message = 4.
func (pr *producer) sendError(seq uint64, code ServerError, text string) {
	pr.c.send(CommandSendError, message(nil).num(1, pr.id).num(2, seq).num(3, uint64(code)).str(4, text))
}

// delayedSend is a SEND that a slow partition will take at its time.
type delayedSend struct {
	due   time.Time
	snd   *sending
	timer *time.Timer
}

// delay queues the SEND if its partition is slow, or was when the sends before it arrived.
func (s *Server) delay(snd *sending) bool {
	p := snd.pr.p
	var wait time.Duration
	if f := s.strike(p.name, faultSlow, OpSend); f != nil {
		wait = f.delay
	} else if len(p.slow) == 0 {
		return false
	}
	d := delayedSend{due: time.Now().Add(wait), snd: snd}
	if n := len(p.slow); n > 0 && d.due.Before(p.slow[n-1].due) {
		d.due = p.slow[n-1].due
	}
	s.running.Add(1)
	d.timer = time.AfterFunc(time.Until(d.due), func() {
		defer s.running.Done()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.takeSlow(p, time.Now())
	})
	p.slow = append(p.slow, d)
	return true
}

// takeSlow lets the delayed sends that are due by now arrive.
func (s *Server) takeSlow(p *partition, now time.Time) {
	for len(p.slow) > 0 && !p.slow[0].due.After(now) {
		d := p.slow[0]
		p.slow = p.slow[1:]
		if d.timer.Stop() {
			s.running.Done()
		}
		if !s.closed {
			s.arrive(d.snd)
		}
	}
	s.notify()
}

func (s *Server) stopTimers() {
	for _, p := range s.logs("") {
		for _, d := range p.slow {
			if d.timer.Stop() {
				s.running.Done()
			}
		}
		p.slow = nil
	}
}
