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
	m.readHeaders(headers, inKafka)
	return m
}

// Kafka is the message as a record, whose timestamp is m.Time; without one any will do.
// The result shares memory with the message.
func (m *Message) Kafka() (key, value []byte, headers []Header) {
	plain, odd := arrange(m.Headers, true, kafkaStorage)
	b := make([]byte, 0, m.entrySize()+len(odd))
	texts, e := m.entries(b, odd, inKafka, m.Time.IsZero() || !fitsMillis(m.Time, 0))
	if len(m.Headers)+e.n == 0 {
		return m.Key, m.Value, nil
	}
	headers = make([]Header, 0, len(m.Headers)+e.n)
	for i, h := range m.Headers {
		if plain != nil && !plain[i] {
			continue
		}
		if h.Typed != nil {
			h = Header{Name: h.Name, Value: textOf(h.Typed)}
		}
		headers = append(headers, h)
	}
	return m.Key, m.Value, e.addTo(headers, texts)
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
