package message

import "time"

// FromKafka makes a message of a record. t is zero, or -1 in milliseconds, for a record
// without a timestamp. The message takes key, value and headers over: nobody may change
// them afterwards. The caller sets From.
func FromKafka(key, value []byte, headers []Header, t time.Time) *Message {
	m := &Message{Key: key, Value: value, Time: truncateTime(t)}
	if t.Unix() == -1 && t.UnixMilli() == -1 {
		m.Time = time.Time{}
	}
	m.readHeaders(headers, inKafka, nil)
	return m
}

// Kafka is the message as a record, whose timestamp is m.Time; without one any will do.
// The result shares memory with the message.
func (m *Message) Kafka() (key, value []byte, headers []Header) {
	stored, odd := arrange(m.Headers, inKafka)
	b := make([]byte, 0, m.entrySize()+len(odd))
	texts, e := m.entries(b, odd, inKafka, m.Time.IsZero() || !fitsMillis(m.Time, 0))
	if len(stored)+e.n > 0 {
		headers = e.addTo(append(make([]Header, 0, len(stored)+e.n), stored...), texts)
	}
	return m.Key, m.Value, headers
}
