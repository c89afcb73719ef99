package fakebroker

import (
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"
)

const partitionSuffix = "-partition-"

// topic is a name and its partitions. A topic without partitions has one log, under its own name.
type topic struct {
	name       string
	partitions int
	logs       []*partition
	schemas    [][]byte
}

// partition is one log with its producers and subscriptions.
type partition struct {
	topic   *topic
	name    string
	index   int // -1: the topic has no partitions
	ledger  uint64
	entries []*entry

	producers map[*producer]struct{}
	waiting   []waitingProducer // oldest first
	// epoch counts the fencings: a producer that comes back with an older one has been fenced.
	epoch uint64
	// lastSequence is kept per producer name, for deduplication.
	lastSequence map[string]uint64
	subs         map[string]*subscription
	// slow holds the sends that a SlowPartition delays, in order.
	slow []delayedSend
}

// entry is what one SEND stored.
type entry struct {
	raw         []byte
	messages    int
	key         string
	publishTime time.Time
}

// canonical completes a short topic name as the client does.
func canonical(name string) string {
	if strings.Contains(name, "://") {
		return name
	}
	if strings.Count(name, "/") == 2 {
		return "persistent://" + name
	}
	return "persistent://public/default/" + name
}

// splitPartition cuts the partition's index off a canonical name; index is -1 if there is none.
func splitPartition(name string) (base string, index int) {
	i := strings.LastIndex(name, partitionSuffix)
	if i < 0 {
		return name, -1
	}
	n, err := strconv.Atoi(name[i+len(partitionSuffix):])
	if err != nil || n < 0 {
		return name, -1
	}
	return name[:i], n
}

// CreateTopic makes a topic with that many partitions, 0 for a topic without. For an existing topic
// it can only raise the number, which is how the broker adds partitions. Topics that clients name
// are created on demand, see WithAutoCreate.
func (s *Server) CreateTopic(name string, partitions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.createTopic(canonical(name), partitions)
	s.notify()
}

func (s *Server) createTopic(name string, partitions int) *topic {
	t := s.topics[name]
	if t == nil {
		t = &topic{name: name}
		s.topics[name] = t
		if partitions == 0 {
			s.addLog(t, name, -1)
		}
	}
	if t.partitions == 0 && len(t.logs) > 0 {
		return t
	}
	for t.partitions < partitions {
		s.addLog(t, name+partitionSuffix+strconv.Itoa(t.partitions), t.partitions)
		t.partitions++
	}
	return t
}

func (s *Server) addLog(t *topic, name string, index int) {
	s.ledgers++
	t.logs = append(t.logs, &partition{
		topic: t, name: name, index: index, ledger: s.ledgers,
		producers: map[*producer]struct{}{}, lastSequence: map[string]uint64{}, subs: map[string]*subscription{},
	})
}

// partition returns the log a producer or consumer asks for, nil if there is none and none may be
// made.
func (s *Server) partition(name string, create bool) *partition {
	name = canonical(name)
	if t := s.topics[name]; t != nil {
		if t.partitions == 0 {
			return t.logs[0]
		}
		return nil
	}
	base, index := splitPartition(name)
	if t := s.topics[base]; t != nil && index >= 0 {
		if index < t.partitions {
			return t.logs[index]
		}
		return nil
	}
	if !create || !s.autoCreate {
		return nil
	}
	if index >= 0 {
		return s.createTopic(base, index+1).logs[index]
	}
	return s.createTopic(name, 0).logs[0]
}

// logs returns the partitions that a topic argument names.
func (s *Server) logs(name string) []*partition {
	if name == "" {
		var all []*partition
		for _, t := range s.topics {
			all = append(all, t.logs...)
		}
		sort.Slice(all, func(i, j int) bool { return all[i].ledger < all[j].ledger })
		return all
	}
	name = canonical(name)
	if t := s.topics[name]; t != nil {
		return t.logs
	}
	if p := s.partition(name, false); p != nil {
		return []*partition{p}
	}
	return nil
}

// covers tells whether a topic argument means this topic or partition.
func covers(arg, name string) bool {
	if arg == "" || arg == name {
		return true
	}
	base, index := splitPartition(name)
	return index >= 0 && arg == base
}

// append stores an entry and hands it to the subscriptions.
func (p *partition) append(e *entry) messageID {
	p.entries = append(p.entries, e)
	for _, sub := range p.subs {
		sub.dispatch()
	}
	return p.id(len(p.entries) - 1)
}

func (p *partition) id(i int) messageID {
	return messageID{ledger: p.ledger, entry: uint64(i), partition: int32(p.index), batchIndex: -1}
}

// position is the index in the log that an id names: -1 before the first entry, len(entries) after
// the last.
func (p *partition) position(id messageID) int {
	switch {
	case id.ledger == noID || id.entry == noID || id.ledger < p.ledger:
		return -1
	case id.ledger > p.ledger || id.entry >= uint64(len(p.entries)):
		return len(p.entries)
	}
	return int(id.entry)
}

// Entries returns every stored message, decoded: batches unpacked, payloads decompressed, in the
// order of the log, partition after partition. It panics on an entry that cannot be decoded, which
// no client in use sends.
func (s *Server) Entries(name string) []Message {
	type stored struct {
		log     *partition
		entries []*entry
	}
	s.mu.Lock()
	var logs []stored
	for _, p := range s.logs(name) {
		logs = append(logs, stored{p, p.entries[:len(p.entries):len(p.entries)]})
	}
	s.mu.Unlock()

	// Entries never change once stored, so the slow part needs no lock.
	var out []Message
	for _, l := range logs {
		for i, e := range l.entries {
			messages, err := unpack(e.raw)
			if err != nil {
				panic(fmt.Sprintf("wire: entry %d of %s: %v", i, l.log.name, err))
			}
			for _, m := range messages {
				m.Topic, m.Partition, m.Ledger, m.Entry = l.log.name, l.log.index, l.log.ledger, uint64(i)
				out = append(out, m)
			}
		}
	}
	return out
}

// Count is len(Entries(name)) without decoding anything.
func (s *Server) Count(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.logs(name) {
		for _, e := range p.entries {
			n += e.messages
		}
	}
	return n
}

// Publish stores messages, one entry each, as if a producer had sent them. The fields that describe
// the place in the log are ignored; without a ProducerName it is "wire", without a SequenceID the
// message's position in its partition. A keyed message goes to the partition the client's default
// router would choose, the others round-robin.
func (s *Server) Publish(name string, messages ...Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	logs := s.writable(name)
	for i, m := range messages {
		p := logs[i%len(logs)]
		if key := routingKey(m); key != "" {
			p = logs[int(javaStringHash(key)%uint32(len(logs)))]
		}
		s.publish(p, []Message{m}, None, false)
	}
	s.notify()
}

// PublishBatch stores the messages as one entry of one partition.
func (s *Server) PublishBatch(partition string, compression Compression, messages ...Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.publish(s.writable(partition)[0], messages, compression, true)
	s.notify()
}

// PublishRaw stores an entry as it is, whatever it holds, as so many messages. Entries cannot
// decode a broken one.
func (s *Server) PublishRaw(partition string, entryBytes []byte, messages int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writable(partition)[0].append(&entry{raw: entryBytes, messages: messages, publishTime: time.Now()})
	s.notify()
}

func (s *Server) writable(name string) []*partition {
	logs := s.logs(name)
	if len(logs) == 0 {
		if p := s.partition(name, true); p != nil {
			return []*partition{p}
		}
		panic("wire: no topic " + name)
	}
	return logs
}

func (s *Server) publish(p *partition, messages []Message, compression Compression, batch bool) {
	messages = append([]Message(nil), messages...)
	for i := range messages {
		m := &messages[i]
		if m.ProducerName == "" {
			m.ProducerName = "wire"
		}
		if m.SequenceID == 0 {
			m.SequenceID = uint64(len(p.entries) + i)
		}
		if m.PublishTime.IsZero() {
			m.PublishTime = time.Now()
		}
	}
	raw, err := pack(messages, compression, batch)
	if err != nil {
		panic(fmt.Sprintf("wire: publish: %v", err))
	}
	p.append(newEntry(raw, messages[0], len(messages)))
}

func newEntry(raw []byte, meta Message, messages int) *entry {
	return &entry{raw: raw, messages: messages, key: routingKey(meta), publishTime: meta.PublishTime}
}

func routingKey(m Message) string {
	if m.OrderingKey != "" {
		return m.OrderingKey
	}
	return m.Key
}

func javaStringHash(s string) uint32 {
	var h uint32
	for i := range len(s) {
		h = 31*h + uint32(s[i])
	}
	return h
}
