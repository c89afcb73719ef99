package message

import (
	"encoding/base64"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// The values of EntryKeyEncoding.
const (
	keyBase64 = "base64"
	keyEmpty  = "empty"
)

// FromPulsar makes a message of one of Pulsar's: key is empty for none, payload nil for
// a null value, eventTime zero for none. The message takes payload over; properties are
// only read. Its headers are in the order of their names unless the properties say
// another. From and OrderingKey are the caller's to fill in; then it calls Begin.
func FromPulsar(key string, payload []byte, properties map[string]string, eventTime time.Time) *Message {
	m := &Message{Value: payload, Time: truncateTime(eventTime)}
	if key != "" {
		m.Key = []byte(key)
	}
	if len(properties) == 0 {
		return m
	}
	if hops, there := properties[EntryHops]; there {
		m.readHops(hops)
	}
	plain := make([]Header, 0, len(properties))
	size := 0
	for name, value := range properties {
		if !isEntry(name) || name != EntryHeaders && !m.fromPulsar(name, value) {
			plain = append(plain, Header{Name: name})
			size += len(value)
		}
	}
	if len(plain) > 0 {
		slices.SortFunc(plain, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
		values := make([]byte, 0, size) // one piece of memory for all values
		for i := range plain {
			from := len(values)
			values = append(values, properties[plain[i].Name]...)
			plain[i].Value = values[from:len(values):len(values)]
		}
		m.Headers = plain
	}
	if entry, there := properties[EntryHeaders]; there {
		all, ok := restore(plain, entry)
		if !ok {
			all = append(plain, Header{Name: EntryHeaders, Value: []byte(entry)})
		}
		m.Headers = all
		if len(all) == 0 {
			m.Headers = nil
		}
	}
	return m
}

func (m *Message) fromPulsar(name, value string) bool {
	switch name {
	case EntryKeyEncoding:
		switch value {
		case keyEmpty:
			if m.Key == nil {
				m.Key = []byte{}
				return true
			}
		case keyBase64:
			if key, err := base64.StdEncoding.AppendDecode(nil, m.Key); err == nil {
				m.Key = key
				return true
			}
		}
		return false
	case EntryOrderingKey:
		return false // Pulsar has a field for it
	case EntryTime:
		t, ok := parseTime(value)
		if ok {
			m.Time = t
		}
		return ok
	}
	return m.readCommonEntry(name, value)
}

// Pulsar is the message as one of Pulsar's, whose event time is m.Time, if that is after 1970, and
// whose ordering key is m.OrderingKey. payload, which shares memory with the message, is nil for a
// null value.
func (m *Message) Pulsar() (key string, payload []byte, properties map[string]string) {
	plain, odd := arrange(m.Headers, false, pulsarStorage)
	encoding := ""
	switch {
	case m.Key == nil:
	case len(m.Key) == 0:
		encoding = keyEmpty
	case !utf8.Valid(m.Key):
		encoding = keyBase64
	}
	needTime := !m.Time.IsZero() && !fitsMillis(m.Time, 1)

	count, size := 0, len(odd)+m.entrySize()+len(m.Key)
	for i := range m.Headers {
		if plain == nil || plain[i] {
			count++
			size += len(m.Headers[i].Value)
		}
	}
	for _, there := range [...]bool{odd != nil, encoding != "", needTime, m.AMQP != nil, m.sendsOrigin(), m.hasFrom(), m.hopCount() > 0} {
		if there {
			count++
		}
	}
	if count > 0 {
		properties = make(map[string]string, count)
	}

	// All texts share one allocation.
	t := sharedText{}
	t.Grow(size)
	var scratch [192]byte
	if encoding == keyBase64 {
		key = t.add(base64.StdEncoding.AppendEncode(scratch[:0], m.Key))
	} else {
		key = t.add(m.Key)
	}
	for i := range m.Headers {
		h := &m.Headers[i]
		switch {
		case plain != nil && !plain[i]:
		case h.Typed != nil:
			properties[h.Name] = t.add(textOf(h.Typed))
		default:
			properties[h.Name] = t.add(h.Value)
		}
	}
	if odd != nil {
		properties[EntryHeaders] = t.add(odd)
	}
	if encoding != "" {
		properties[EntryKeyEncoding] = encoding
	}
	if needTime {
		properties[EntryTime] = t.add(appendTime(scratch[:0], m.Time))
	}
	if m.AMQP != nil {
		properties[EntryAMQP] = t.add(m.AMQP.append(scratch[:0]))
	}
	if m.sendsOrigin() {
		properties[EntryOrigin] = t.add(m.Origin.append(scratch[:0]))
	}
	if m.hasFrom() {
		properties[EntryFrom] = t.add(m.appendFrom(scratch[:0]))
	}
	if m.hopCount() > 0 {
		properties[EntryHops] = t.add(m.appendHops(scratch[:0]))
	}
	return key, m.Value, properties
}

func pulsarStorage(h *Header) storage {
	switch {
	case !validName(h.Name):
		return notStored
	case h.Typed == nil:
		if h.Value != nil && utf8.Valid(h.Value) {
			return storedAsIs
		}
		return notStored
	}
	if b, ok := h.Typed.([]byte); ok && !utf8.Valid(b) || !scalar(kindOf(h.Typed)) {
		return notStored
	}
	return storedAsText
}

// sharedText builds many strings in one allocation.
type sharedText struct{ strings.Builder }

// add returns b as a string.
func (t *sharedText) add(b []byte) string {
	from := t.Len()
	t.Write(b)
	return t.String()[from:]
}
