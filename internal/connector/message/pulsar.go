package message

import (
	"encoding/base64"
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
// a null value, eventTime zero for none. The message takes payload over. Its headers are
// in the order of their names unless the properties say another. The caller sets From
// and OrderingKey.
func FromPulsar(key string, payload []byte, properties map[string]string, eventTime time.Time) *Message {
	m := &Message{Value: payload, Time: truncateTime(eventTime)}
	if key != "" {
		m.Key = []byte(key)
	}
	size := 0
	for _, value := range properties {
		size += len(value)
	}
	headers := make([]Header, 0, len(properties))
	values := make([]byte, 0, size) // all values share one allocation
	for name, value := range properties {
		from := len(values)
		values = append(values, value...)
		headers = append(headers, Header{Name: name, Value: values[from:len(values):len(values)]})
	}
	m.readHeaders(headers, inPulsar, properties)
	return m
}

// decodeKey reads EntryKeyEncoding.
func (m *Message) decodeKey(encoding string) bool {
	switch {
	case encoding == keyEmpty && m.Key == nil:
		m.Key = []byte{}
		return true
	case encoding == keyBase64:
		key, err := base64.StdEncoding.AppendDecode(nil, m.Key)
		if err == nil {
			m.Key = key
		}
		return err == nil
	default:
		return false
	}
}

// Pulsar is the message as one of Pulsar's, whose event time is m.Time, if that is after 1970, and
// whose ordering key is m.OrderingKey. payload, which shares memory with the message, is nil for a
// null value.
func (m *Message) Pulsar() (key string, payload []byte, properties map[string]string) {
	stored, odd := arrange(m.Headers, inPulsar)
	var scratch [256]byte
	texts, e := m.entries(scratch[:0], odd, inPulsar, !m.Time.IsZero() && !fitsMillis(m.Time, 1))
	encoding := ""
	switch {
	case m.Key == nil:
	case len(m.Key) == 0:
		encoding = keyEmpty
	case !utf8.Valid(m.Key):
		encoding = keyBase64
	}
	count, size := len(stored)+e.n, len(texts)+base64.StdEncoding.EncodedLen(len(m.Key))
	for i := range stored {
		size += len(stored[i].Value)
	}
	if encoding != "" {
		count++
	}
	if count > 0 {
		properties = make(map[string]string, count)
	}

	// All texts share one allocation.
	t := sharedText{}
	t.Grow(size)
	if encoding == keyBase64 {
		key = t.add(base64.StdEncoding.AppendEncode(nil, m.Key))
	} else {
		key = t.add(m.Key)
	}
	for i := range stored {
		properties[stored[i].Name] = t.add(stored[i].Value)
	}
	if encoding != "" {
		properties[EntryKeyEncoding] = encoding
	}
	for i, name := range e.names[:e.n] {
		properties[name] = t.add(e.of(texts, i))
	}
	return key, m.Value, properties
}

// sharedText builds many strings in one allocation.
type sharedText struct{ strings.Builder }

// add returns b as a string.
func (t *sharedText) add(b []byte) string {
	from := t.Len()
	t.Write(b)
	return t.String()[from:]
}
