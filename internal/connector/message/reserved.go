package message

import (
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Prefix begins the names of the entries that Pigeonhole adds to a message: headers of Kafka and
// AMQP, properties of Pulsar. All of them are text. An application's headers that have one of the
// names below travel inside EntryHeaders; others with this prefix travel as they are.
const Prefix = "pigeonhole."

// The entries.
const (
	// EntryOrigin is Message.Origin: see [Origin.String].
	EntryOrigin = Prefix + "origin"
	// EntryHops is Message.Hops and Message.Hop, separated by commas. Every route writes
	// it: without it EntryOrigin and EntryFrom are an application's own headers.
	EntryHops = Prefix + "hops"
	// EntryFrom is where the last of several Pigeonholes took the message from, in the form of
	// EntryOrigin. See [Place].
	EntryFrom = Prefix + "from"
	// EntryHeaders holds what the system cannot store of the headers: see headers.go.
	EntryHeaders = Prefix + "headers"
	// EntryAMQP is Message.AMQP, as name=value&name=value, without empty values.
	EntryAMQP = Prefix + "amqp"
	// EntryKey is the key, in AMQP, which has no field for it.
	EntryKey = Prefix + "key"
	// EntryKeyEncoding says that Pulsar's key, which is text, is the base64 of the key ("base64"),
	// or that the message has an empty key ("empty").
	EntryKeyEncoding = Prefix + "key_encoding"
	// EntryOrderingKey is Message.OrderingKey, in Kafka and AMQP.
	EntryOrderingKey = Prefix + "ordering_key"
	// EntryValue is "null" for a null value, in AMQP, which has only empty ones.
	EntryValue = Prefix + "value"
	// EntryTime is the message's time if the system's own field cannot hold it: see appendTime.
	EntryTime = Prefix + "time"
)

// IsReserved reports whether a header of that name may be Pigeonhole's own.
func IsReserved(name string) bool { return strings.HasPrefix(name, Prefix) }

// isEntry reports whether name is that of an entry.
func isEntry(name string) bool {
	if !IsReserved(name) {
		return false
	}
	switch name {
	case EntryOrigin, EntryHops, EntryFrom, EntryHeaders, EntryAMQP,
		EntryKey, EntryKeyEncoding, EntryOrderingKey, EntryValue, EntryTime:
		return true
	}
	return false
}

// system is what a message is read from or written to.
type system byte

const (
	inKafka system = iota // keeps the order of headers, and repeated names
	inPulsar
	inAMQP
)

// entries are the entries of a message for one system. Their texts stand one behind another in a
// slice of its own, not here, so that Pulsar can keep it on the stack.
type entries struct {
	names [7]string
	ends  [7]int // of the texts
	n     int
}

func (e *entries) add(name string, end int) {
	e.names[e.n], e.ends[e.n] = name, end
	e.n++
}

// of returns the text of entry i.
func (e *entries) of(texts []byte, i int) []byte {
	from := 0
	if i > 0 {
		from = e.ends[i-1]
	}
	return texts[from:e.ends[i]:e.ends[i]]
}

// addTo appends the entries to headers.
func (e *entries) addTo(headers []Header, texts []byte) []Header {
	for i, name := range e.names[:e.n] {
		headers = append(headers, Header{Name: name, Value: e.of(texts, i)})
	}
	return headers
}

// entries returns all entries but EntryKey, EntryKeyEncoding and EntryValue. It appends their texts to
// b. odd is the text of EntryHeaders, nil for none.
func (m *Message) entries(b, odd []byte, in system, needTime bool) (texts []byte, e entries) {
	if odd != nil {
		b = append(b, odd...)
		e.add(EntryHeaders, len(b))
	}
	if m.AMQP != nil && in != inAMQP {
		b = m.AMQP.append(b)
		e.add(EntryAMQP, len(b))
	}
	if m.OrderingKey != "" && in != inPulsar {
		b = appendEscaped(b, m.OrderingKey, "")
		e.add(EntryOrderingKey, len(b))
	}
	if needTime {
		b = appendTime(b, m.Time)
		e.add(EntryTime, len(b))
	}
	if !m.Origin.IsZero() && !m.OmitOrigin {
		b = m.Origin.append(b)
		e.add(EntryOrigin, len(b))
	}
	if m.hasFrom() {
		b = m.From.origin(m.From.TopicID).append(b)
		e.add(EntryFrom, len(b))
	}
	if len(m.Hops) > 0 || m.Hop != "" {
		b = m.appendHops(b)
		e.add(EntryHops, len(b))
	}
	return b, e
}

// readHeaders sets Headers, and the fields that the entries among headers hold. An entry that cannot
// be read is an ordinary header. The message takes headers over. texts, nil for none, has the values as
// strings.
func (m *Message) readHeaders(headers []Header, in system, texts map[string]string) {
	// Without hops, other entries are an application's own headers.
	for i := range headers {
		if h := &headers[i]; h.Name == EntryHops && h.Typed == nil {
			m.Hops = parseHops(h.text(texts))
		}
	}
	plain := headers[:0]
	var arranged []Header // none or one
	for i := range headers {
		h := &headers[i]
		switch {
		case !isEntry(h.Name) || h.Value == nil:
			plain = append(plain, *h)
		case h.Name == EntryHeaders && h.Typed == nil && arranged == nil:
			arranged = []Header{*h}
		case !m.readEntry(h, in, texts):
			plain = append(plain, *h)
		}
	}
	if in != inKafka {
		slices.SortStableFunc(plain, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	}
	if arranged != nil {
		all, ok := restore(plain, string(arranged[0].Value))
		if !ok {
			all = append(plain, arranged...)
		}
		plain = all
	}
	if len(plain) > 0 {
		m.Headers = plain
	}
}

// text returns the value as a string, without a copy if texts has it.
func (h *Header) text(texts map[string]string) string {
	if text, there := texts[h.Name]; there {
		return text
	}
	return string(h.Value)
}

// readEntry reads an entry other than EntryHeaders. It reports false for one that the system does not
// have, or that cannot be read.
func (m *Message) readEntry(h *Header, in system, texts map[string]string) (ok bool) {
	if h.Name == EntryHops && h.Typed == nil {
		return len(m.Hops) > 0 // readHeaders has read it
	}
	text := h.text(texts)
	if h.Typed != nil {
		_, binary := h.Typed.([]byte)
		if h.Name != EntryKey || !binary {
			return false
		}
	}
	switch h.Name {
	case EntryOrigin:
		if len(m.Hops) > 0 {
			m.Origin, ok = ParseOrigin(text)
		}
	case EntryFrom:
		if len(m.Hops) > 0 {
			_, ok = ParseOrigin(text) // only Place uses it
		}
	case EntryAMQP:
		var a AMQP
		if a, ok = parseAMQP(text); ok {
			m.AMQP = &a
		}
	case EntryTime:
		t, valid := parseTime(text)
		// If the second differs, AMQP's timestamp was changed since, and EntryTime is stale.
		if ok = valid && (in != inAMQP || m.Time.IsZero() || t.Unix() == m.Time.Unix()); ok {
			m.Time = t
		}
	case EntryOrderingKey:
		key, valid := unescape(text)
		if ok = valid && in != inPulsar; ok {
			m.OrderingKey = key
		}
	case EntryKeyEncoding:
		ok = in == inPulsar && m.decodeKey(text)
	case EntryKey:
		if ok = in == inAMQP; ok {
			m.Key = h.Value
		}
	case EntryValue:
		if ok = in == inAMQP && text == "null" && len(m.Value) == 0; ok {
			m.Value = nil
		}
	}
	return ok
}

// appendEscaped appends s with what is not printable, '%' and the bytes of special as
// %XX, so that the result is valid UTF-8 on one line.
func appendEscaped(b []byte, s, special string) []byte {
	for len(s) > 0 {
		n := plainPrefix(s, special)
		b, s = append(b, s[:n]...), s[n:]
		if s == "" {
			break
		}
		if _, size := utf8.DecodeRuneInString(s); size > 1 { // invalid UTF-8 is one byte
			b, s = append(b, s[:size]...), s[size:]
			continue
		}
		const digits = "0123456789ABCDEF"
		b, s = append(b, '%', digits[s[0]>>4], digits[s[0]&15]), s[1:]
	}
	return b
}

// plainPrefix is how many bytes at the beginning of s are ASCII and need no escape.
func plainPrefix(s, special string) int {
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c >= 0x7f || c == '%' {
			return i
		}
		for j := range len(special) { // quicker than strings.IndexByte for the one or two that there are
			if c == special[j] {
				return i
			}
		}
	}
	return len(s)
}

// unescape is the reverse of appendEscaped. It reports false for a '%' without two digits.
func unescape(s string) (string, bool) {
	if strings.IndexByte(s, '%') < 0 {
		return s, true
	}
	// PathUnescape changes nothing but %XX.
	text, err := url.PathUnescape(s)
	return text, err == nil
}

// noTime is the EntryTime of a message without a time, in a system that would add one.
const noTime = "none"

// maxSeconds is somewhat less than the seconds that milliseconds in an int64 can hold.
const maxSeconds = 9_000_000_000_000_000

// truncateTime returns t as a Message has it: UTC, whole milliseconds, no monotonic clock.
func truncateTime(t time.Time) time.Time {
	if t.IsZero() {
		return time.Time{}
	}
	ns := t.Nanosecond()
	return time.Unix(t.Unix(), int64(ns-ns%1_000_000)).UTC()
}

// appendTime appends EntryTime: "none", milliseconds since 1970, or seconds and an "s" if an int64
// cannot hold the milliseconds.
func appendTime(b []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(b, noTime...)
	}
	if s := t.Unix(); s > maxSeconds || s < -maxSeconds {
		return append(strconv.AppendInt(b, s, 10), 's')
	}
	return strconv.AppendInt(b, t.UnixMilli(), 10)
}

func parseTime(text string) (time.Time, bool) {
	if text == noTime {
		return time.Time{}, true
	}
	seconds := text != "" && text[len(text)-1] == 's'
	if seconds {
		text = text[:len(text)-1]
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, false
	}
	if seconds {
		return time.Unix(n, 0).UTC(), true
	}
	return time.UnixMilli(n).UTC(), true
}

// fitsMillis reports whether t is a number of milliseconds that is at least least.
func fitsMillis(t time.Time, least int64) bool {
	return t.Unix() <= maxSeconds && t.Unix() >= -1 && t.UnixMilli() >= least
}
