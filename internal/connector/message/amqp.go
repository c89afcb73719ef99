package message

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// FromAMQP makes a message of a delivery. headers are its table in any order: a string
// has a Value, anything else is Typed and needs no Value, void is Null or neither. t is
// zero for a delivery without a timestamp. The message takes value and headers over, and
// the tables in them. From is the caller's to fill in; then it calls Begin.
func FromAMQP(value []byte, a AMQP, headers []Header, t time.Time) *Message {
	m := &Message{Value: value, AMQP: &a, Time: truncateTime(t)}
	if value == nil {
		m.Value = []byte{}
	}
	plain, odd := make([]Header, 0, len(headers)), ""
	hasOdd := false
	for i := range headers {
		if h := fromField(headers[i]); h.Name == EntryHops && h.Typed == nil {
			m.readHops(string(h.Value))
		}
	}
	for _, h := range headers {
		h = fromField(h)
		if h.Name == EntryHeaders && h.Typed == nil && h.Value != nil {
			odd, hasOdd = string(h.Value), true
		} else if !isEntry(h.Name) || !m.fromAMQP(&h) {
			plain = append(plain, h)
		}
	}
	slices.SortStableFunc(plain, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	if hasOdd {
		all, ok := restore(plain, odd)
		if !ok {
			all = append(plain, Header{Name: EntryHeaders, Value: []byte(odd)})
		}
		plain = all
	}
	if len(plain) > 0 {
		m.Headers = plain
	}
	return m
}

// fromField brings a field of a table to the form of a Header.
func fromField(h Header) Header {
	if h.Typed == nil {
		return h
	}
	switch v := canonical(h.Typed).(type) {
	case Null:
		return Header{Name: h.Name}
	case string:
		return Header{Name: h.Name, Value: []byte(v)}
	default:
		return Header{Name: h.Name, Value: textOf(v), Typed: v}
	}
}

func (m *Message) fromAMQP(h *Header) bool {
	if h.Value == nil {
		return false
	}
	switch h.Name {
	case EntryKey:
		if _, ok := h.Typed.([]byte); !ok && h.Typed != nil {
			return false
		}
		m.Key = h.Value
		return true
	case EntryValue:
		if string(h.Value) != "null" || len(m.Value) > 0 {
			return false
		}
		m.Value = nil
		return true
	case EntryTime:
		t, ok := parseTime(string(h.Value))
		// If the second differs, somebody has changed the timestamp since, and EntryTime is stale.
		if !ok || !m.Time.IsZero() && t.Unix() != m.Time.Unix() {
			return false
		}
		m.Time = t
		return true
	}
	return h.Typed == nil && m.readCommonEntry(h.Name, string(h.Value))
}

// ToAMQP is the message as one of AMQP's: a are the properties that it had in RabbitMQ
// before, the zero AMQP for a message from elsewhere; exchange and routing key are as
// they were there. t is in whole seconds, zero for none. headers have distinct names of
// at most 255 bytes; one with Typed is to be sent as that type (Null as void), any other
// as a string. The result shares memory with the message.
func (m *Message) ToAMQP() (value []byte, a AMQP, headers []Header, t time.Time) {
	plain, odd := arrange(m.Headers, false, amqpStorage)
	needTime := !m.Time.IsZero()
	if needTime {
		t = time.Unix(m.Time.Unix(), 0).UTC()
		needTime = t.IsZero() || !t.Equal(m.Time)
	}
	n := len(m.Headers)
	for _, there := range [...]bool{
		odd != nil, m.Key != nil, m.OrderingKey != "", m.Value == nil, needTime, m.sendsOrigin(), m.hasFrom(), m.hopCount() > 0,
	} {
		if there {
			n++
		}
	}
	if n > 0 {
		headers = make([]Header, 0, n)
	}
	for i, h := range m.Headers {
		if plain != nil && !plain[i] {
			continue
		}
		if h.Typed == nil && h.Value == nil {
			h.Typed = Null{}
		}
		headers = append(headers, h)
	}
	add := func(name string, text []byte) { headers = append(headers, Header{Name: name, Value: text}) }
	if odd != nil {
		add(EntryHeaders, odd)
	}
	if m.Key != nil {
		add(EntryKey, m.Key)
		if !utf8.Valid(m.Key) {
			headers[len(headers)-1].Typed = m.Key
		}
	}
	if m.OrderingKey != "" {
		add(EntryOrderingKey, appendEscaped(nil, m.OrderingKey, ""))
	}
	if value = m.Value; value == nil {
		value = []byte{}
		add(EntryValue, []byte("null"))
	}
	if needTime {
		add(EntryTime, appendTime(nil, m.Time))
	}
	if m.AMQP != nil {
		a = *m.AMQP
	}
	if m.sendsOrigin() {
		add(EntryOrigin, m.Origin.append(make([]byte, 0, m.entrySize())))
	}
	if m.hasFrom() {
		add(EntryFrom, m.appendFrom(nil))
	}
	if m.hopCount() > 0 {
		add(EntryHops, m.appendHops(nil))
	}
	return value, a, headers, t
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

func amqpStorage(h *Header) storage {
	if !validName(h.Name) || len(h.Name) > math.MaxUint8 || IsBrokerHeader(h.Name) {
		return notStored
	}
	return storedAsIs
}

// field is one of AMQP's texts and its name in EntryAMQP.
type field struct {
	name  string
	value *string
}

func (a *AMQP) fields() [11]field {
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
	}
}

// append appends EntryAMQP.
func (a *AMQP) append(b []byte) []byte {
	start := len(b)
	next := func(name string) {
		if len(b) > start {
			b = append(b, '&')
		}
		b = append(append(b, name...), '=')
	}
	for _, f := range a.fields() {
		if *f.value != "" {
			next(f.name)
			b = appendEscaped(b, *f.value, "&=")
		}
	}
	if a.DeliveryMode != 0 {
		next("delivery_mode")
		b = strconv.AppendUint(b, uint64(a.DeliveryMode), 10)
	}
	if a.Priority != 0 {
		next("priority")
		b = strconv.AppendUint(b, uint64(a.Priority), 10)
	}
	return b
}

// size is roughly the length of EntryAMQP.
func (a *AMQP) size() int {
	n := 32
	for _, f := range a.fields() {
		if *f.value != "" {
			n += len(f.name) + len(*f.value) + 2
		}
	}
	return n
}

func parseAMQP(entry string) (a AMQP, ok bool) {
	if entry == "" {
		return a, true
	}
	fields := a.fields()
	for part := range strings.SplitSeq(entry, "&") {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return AMQP{}, false
		}
		switch name {
		case "delivery_mode", "priority":
			n, err := strconv.ParseUint(value, 10, 8)
			if err != nil {
				return AMQP{}, false
			}
			if name == "priority" {
				a.Priority = uint8(n)
			} else {
				a.DeliveryMode = uint8(n)
			}
			continue
		}
		i := slices.IndexFunc(fields[:], func(f field) bool { return f.name == name })
		if i < 0 {
			return AMQP{}, false
		}
		if *fields[i].value, ok = unescape(value); !ok {
			return AMQP{}, false
		}
	}
	return a, true
}
