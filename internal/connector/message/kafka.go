package message

import "time"

// FromKafka makes a message of a record. t is zero, or -1 in milliseconds, for a record
// without a timestamp. The message takes key, value and headers over: nobody may change
// them afterwards. From is the caller's to fill in; then it calls Begin.
func FromKafka(key, value []byte, headers []Header, t time.Time) *Message {
	m := &Message{Key: key, Value: value, Time: truncateTime(t)}
	if !t.IsZero() && t.Unix() == -1 && t.UnixMilli() == -1 {
		m.Time = time.Time{}
	}
	for i := range headers {
		if IsReserved(headers[i].Name) {
			m.fromKafka(headers)
			return m
		}
	}
	if len(headers) > 0 {
		m.Headers = headers
	}
	return m
}

func (m *Message) fromKafka(headers []Header) {
	for i := range headers {
		if headers[i].Name == EntryHops {
			m.readHops(string(headers[i].Value))
		}
	}
	plain, entry := make([]Header, 0, len(headers)), -1
	for i, h := range headers {
		if isEntry(h.Name) && h.Value != nil {
			switch h.Name {
			case EntryHeaders:
				if entry < 0 {
					entry = i
					continue
				}
			case EntryTime:
				if t, ok := parseTime(string(h.Value)); ok {
					m.Time = t
					continue
				}
			default:
				if m.readCommonEntry(h.Name, string(h.Value)) {
					continue
				}
			}
		}
		plain = append(plain, h)
	}
	if entry >= 0 {
		all, ok := restore(plain, string(headers[entry].Value))
		if !ok {
			all = append(plain, headers[entry])
		}
		plain = all
	}
	if len(plain) > 0 {
		m.Headers = plain
	}
}

// Kafka is the message as a record, whose timestamp is m.Time; without one any will do.
// The result shares memory with the message.
func (m *Message) Kafka() (key, value []byte, headers []Header) {
	plain, odd := arrange(m.Headers, true, kafkaStorage)
	needTime := m.Time.IsZero() || !fitsMillis(m.Time, 0)
	headers = make([]Header, 0, len(m.Headers)+m.entries(odd != nil, needTime))
	for i := range m.Headers {
		h := &m.Headers[i]
		switch {
		case plain != nil && !plain[i]:
		case h.Typed != nil:
			headers = append(headers, Header{Name: h.Name, Value: textOf(h.Typed)})
		default:
			headers = append(headers, *h)
		}
	}
	// All entries share one allocation; each is a part of it.
	b := make([]byte, 0, m.entrySize()+len(odd))
	add := func(name string, grown []byte) {
		headers = append(headers, Header{Name: name, Value: grown[len(b):len(grown):len(grown)]})
		b = grown
	}
	if odd != nil {
		add(EntryHeaders, append(b, odd...))
	}
	if m.AMQP != nil {
		add(EntryAMQP, m.AMQP.append(b))
	}
	if m.OrderingKey != "" {
		add(EntryOrderingKey, appendEscaped(b, m.OrderingKey, ""))
	}
	if needTime {
		add(EntryTime, appendTime(b, m.Time))
	}
	if m.sendsOrigin() {
		add(EntryOrigin, m.Origin.append(b))
	}
	if m.hasFrom() {
		add(EntryFrom, m.appendFrom(b))
	}
	if m.hopCount() > 0 {
		add(EntryHops, m.appendHops(b))
	}
	if len(headers) == 0 {
		headers = nil
	}
	return m.Key, m.Value, headers
}

func kafkaStorage(h *Header) storage {
	switch {
	case isEntry(h.Name):
		return notStored
	case h.Typed == nil:
		return storedAsIs
	case scalar(kindOf(h.Typed)):
		return storedAsText
	default:
		return notStored
	}
}

// entrySize is roughly the length of all entries, without EntryHeaders. Sent, a byte of theirs takes
// up to three.
func (m *Message) entrySize() int {
	n := 0
	if o := &m.Origin; !o.IsZero() {
		n += len(o.System) + len(o.Cluster) + len(o.Topic) + len(o.ID) + 28
	}
	for _, place := range m.Hops {
		n += len(place) + 1
	}
	n += len(m.Hop) + len(m.OrderingKey)
	if m.AMQP != nil {
		n += m.AMQP.size()
	}
	if m.hasFrom() {
		n += len(m.From.System) + len(m.From.Cluster) + len(m.From.Topic) + len(m.From.TopicID) + 27
	}
	return n
}

// entries is how many entries the message has in Kafka.
func (m *Message) entries(odd, needTime bool) int {
	n := 0
	for _, there := range [...]bool{odd, needTime, m.OrderingKey != "", m.AMQP != nil, m.sendsOrigin(), m.hasFrom(), m.hopCount() > 0} {
		if there {
			n++
		}
	}
	return n
}
