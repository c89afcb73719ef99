package message

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// FromAMQP makes a message of a delivery. headers are its table in any order: a string
// has a Value, anything else is Typed and needs no Value, void is Null or neither. t is
// zero for a delivery without a timestamp. The message takes value and headers over, and
// the tables in them. The caller sets From.
func FromAMQP(value []byte, a AMQP, headers []Header, t time.Time) *Message {
	m := &Message{Value: value, AMQP: &a, Time: truncateTime(t)}
	if value == nil {
		m.Value = []byte{}
	}
	for i, h := range headers {
		if h.Typed != nil {
			headers[i] = typedHeader(h.Name, canonical(h.Typed))
		}
	}
	m.readHeaders(headers, inAMQP, nil)
	return m
}

// ToAMQP is the message as one of AMQP's: a are the properties that it had in RabbitMQ
// before, the zero AMQP for a message from elsewhere; exchange and routing key are as
// they were there. t is in whole seconds, zero for none. headers have distinct names of
// at most 255 bytes; one with Typed is to be sent as that type (Null as void), any other
// as a string. The result shares memory with the message.
func (m *Message) ToAMQP() (value []byte, a AMQP, headers []Header, t time.Time) {
	if m.AMQP != nil {
		a = *m.AMQP
	}
	if !m.Time.IsZero() {
		t = time.Unix(m.Time.Unix(), 0).UTC()
	}
	stored, odd := arrange(m.Headers, inAMQP)
	b := make([]byte, 0, m.entrySize()+len(odd))
	texts, e := m.entries(b, odd, inAMQP, !m.Time.IsZero() && (t.IsZero() || !t.Equal(m.Time)))
	headers = append(make([]Header, 0, len(stored)+e.n+2), stored...)
	for i, h := range headers {
		if h.Typed == nil && h.Value == nil {
			headers[i].Typed = Null{}
		}
	}
	if m.Key != nil {
		key := Header{Name: EntryKey, Value: m.Key}
		if !utf8.Valid(m.Key) {
			key.Typed = m.Key
		}
		headers = append(headers, key)
	}
	if value = m.Value; value == nil {
		value = []byte{}
		headers = append(headers, Header{Name: EntryValue, Value: []byte("null")})
	}
	return value, a, e.addTo(headers, texts), t
}

// IsBrokerHeader reports whether RabbitMQ acts on a header of that name, or sets it itself. A sink
// never sends such a header: with CC or BCC a sender could choose queues.
// (https://www.rabbitmq.com/docs/sender-selected, https://www.rabbitmq.com/docs/dlx#effects,
// https://www.rabbitmq.com/docs/quorum-queues)
func IsBrokerHeader(name string) bool {
	switch name {
	case "CC", "BCC", "x-death", "x-delivery-count", "x-acquired-count":
		return true
	}
	return strings.HasPrefix(name, "x-first-death-") || strings.HasPrefix(name, "x-last-death-")
}

// field is one of AMQP's properties and its name in EntryAMQP.
type field struct {
	name  string
	value *string
}

// fields returns all properties. Those that are numbers are in deliveryMode and priority.
func (a *AMQP) fields(deliveryMode, priority *string) [13]field {
	return [...]field{
		{"exchange", &a.Exchange},
		{"routing_key", &a.RoutingKey},
		{"content_type", &a.ContentType},
		{"content_encoding", &a.ContentEncoding},
		{"correlation_id", &a.CorrelationID},
		{"reply_to", &a.ReplyTo},
		{"expiration", &a.Expiration},
		{"message_id", &a.MessageID},
		{"type", &a.Type},
		{"user_id", &a.UserID},
		{"app_id", &a.AppID},
		{"delivery_mode", deliveryMode},
		{"priority", priority},
	}
}

// append appends EntryAMQP.
func (a *AMQP) append(b []byte) []byte {
	text := func(n uint8) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(int(n))
	}
	deliveryMode, priority := text(a.DeliveryMode), text(a.Priority)
	start := len(b)
	for _, f := range a.fields(&deliveryMode, &priority) {
		if *f.value == "" {
			continue
		}
		if len(b) > start {
			b = append(b, '&')
		}
		b = appendEscaped(append(append(b, f.name...), '='), *f.value, "&=")
	}
	return b
}

func parseAMQP(entry string) (a AMQP, ok bool) {
	if entry == "" {
		return a, true
	}
	deliveryMode, priority := "0", "0"
	fields := a.fields(&deliveryMode, &priority)
	for part := range strings.SplitSeq(entry, "&") {
		name, value, ok := strings.Cut(part, "=")
		i := slices.IndexFunc(fields[:], func(f field) bool { return f.name == name })
		if !ok || i < 0 {
			return AMQP{}, false
		}
		if *fields[i].value, ok = unescape(value); !ok {
			return AMQP{}, false
		}
	}
	mode, err := strconv.ParseUint(deliveryMode, 10, 8)
	level, err2 := strconv.ParseUint(priority, 10, 8)
	a.DeliveryMode, a.Priority = uint8(mode), uint8(level)
	return a, err == nil && err2 == nil
}
