package message

import (
	"strings"
	"unicode/utf8"
)

// Prefix begins the names of the entries that Pigeonhole adds to a message: headers of
// Kafka and AMQP, properties of Pulsar. All of them are text. Headers of the
// application that have one of the names below travel inside EntryHeaders; others with
// this prefix travel as they are.
const Prefix = "pigeonhole."

// The entries.
const (
	// EntryOrigin is Message.Origin: see [Origin.String].
	EntryOrigin = Prefix + "origin"
	// EntryHops is Message.Hops and Message.Hop, separated by commas. Every route writes
	// it: without it EntryOrigin and EntryFrom are an application's own headers.
	EntryHops = Prefix + "hops"
	// EntryFrom is where the last Pigeonhole took the message from, in the form of EntryOrigin. Only
	// messages that have passed several Pigeonholes have it: for others the origin says the same.
	// See [Place].
	EntryFrom = Prefix + "from"
	// EntryHeaders holds the headers that the system cannot store, the types of those that it
	// stores as text, and the order of all if the system does not keep it: see headers.go.
	EntryHeaders = Prefix + "headers"
	// EntryAMQP is Message.AMQP, as name=value&name=value, without what is empty.
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
	case EntryOrigin, EntryHops, EntryFrom, EntryHeaders, EntryAMQP, EntryKey, EntryKeyEncoding, EntryOrderingKey, EntryValue, EntryTime:
		return true
	}
	return false
}

// readCommonEntry reads an entry that is the same in every system, except for EntryHeaders. It
// reports false for an entry that it does not know or cannot read, which is then an ordinary header.
func (m *Message) readCommonEntry(name, text string) bool {
	ok := false
	switch name {
	case EntryOrigin:
		if len(m.Hops) > 0 {
			m.Origin, ok = ParseOrigin(text)
		}
	case EntryHops:
		ok = len(m.Hops) > 0 // readHops has read it
	case EntryFrom:
		if len(m.Hops) > 0 {
			_, ok = ParseOrigin(text) // only Place uses it
		}
	case EntryOrderingKey:
		var key string
		if key, ok = unescape(text); ok {
			m.OrderingKey = key
		}
	case EntryAMQP:
		var a AMQP
		if a, ok = parseAMQP(text); ok {
			m.AMQP = &a
		}
	}
	return ok
}

// readHops reads EntryHops. Without hops, other entries are an application's own headers.
func (m *Message) readHops(text string) { m.Hops, _ = parseHops(text) }

const hexDigits = "0123456789ABCDEF"

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
		b, s = append(b, '%', hexDigits[s[0]>>4], hexDigits[s[0]&15]), s[1:]
	}
	return b
}

// plainPrefix is how many bytes at the beginning of s are ASCII and need no escape: nearly always
// all of them.
func plainPrefix(s, special string) int {
	for i := range len(s) {
		c := s[i]
		if c < ' ' || c >= 0x7f || c == '%' {
			return i
		}
		for j := range len(special) { // one or two
			if c == special[j] {
				return i
			}
		}
	}
	return len(s)
}

// unescape is the reverse of appendEscaped. It reports false for a '%' without two digits.
func unescape(s string) (string, bool) {
	at := strings.IndexByte(s, '%')
	if at < 0 {
		return s, true
	}
	b := make([]byte, 0, len(s))
	for ; at >= 0; at = strings.IndexByte(s, '%') {
		if len(s) < at+3 {
			return "", false
		}
		high, low := unhex(s[at+1]), unhex(s[at+2])
		if high > 15 || low > 15 {
			return "", false
		}
		b = append(append(b, s[:at]...), high<<4|low)
		s = s[at+3:]
	}
	return string(append(b, s...)), true
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}
