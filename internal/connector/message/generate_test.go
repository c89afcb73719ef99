package message

import (
	"encoding/binary"
	"math"
	"strings"
	"time"
)

// source makes values of the bytes that the fuzzer gives.
type source struct{ b []byte }

func (s *source) byte() byte {
	if len(s.b) == 0 {
		return 0
	}
	c := s.b[0]
	s.b = s.b[1:]
	return c
}

func (s *source) int64() int64 {
	var b [8]byte
	n := copy(b[:], s.b)
	s.b = s.b[n:]
	return int64(binary.LittleEndian.Uint64(b[:]))
}

func (s *source) bytes() []byte {
	switch n := int(s.byte()); {
	case n == 255:
		return nil
	case n >= 200:
		return []byte("plain text")
	default:
		n = min(n%24, len(s.b))
		b := s.b[:n:n]
		s.b = s.b[n:]
		return append([]byte{}, b...)
	}
}

func (s *source) name() string {
	names := []string{"a", "b", "content-type", "", "\xff", EntryHeaders, EntryOrigin, EntryHops, EntryKey, EntryTime, EntryValue, EntryAMQP, EntryFrom,
		EntryKeyEncoding, EntryOrderingKey, Prefix, Prefix + "other", "z,=(){}%", "ä", strings.Repeat("n", 256), "7", "0-1", "a\x00b"}
	n := int(s.byte())
	if n < 2*len(names) {
		return names[n%len(names)]
	}
	return string(s.bytes())
}

func (s *source) header() Header { return Header{Name: s.name(), Value: s.value()} }

func (s *source) value() []byte {
	if s.byte() == 9 { // as if somebody else made our entries
		return []byte([]string{"0", "0-1", "a=Sx", "0:I", "kafka;c;t;1;2", "a,b", "none", "null", "123", "base64", "exchange=x"}[int(s.byte())%11])
	}
	return s.bytes()
}

func (s *source) headers(next func() Header) []Header {
	var headers []Header
	for range int(s.byte()) % 12 {
		headers = append(headers, next())
	}
	return headers
}

// time is one that a system's milliseconds can hold.
func (s *source) time() time.Time {
	switch s.byte() % 3 {
	case 0:
		return time.Time{}
	case 1:
		return time.UnixMilli(1_700_000_000_000 + s.int64()%1_000_000_000).UTC()
	default:
		return time.UnixMilli(s.int64() & (1<<45 - 1)).UTC()
	}
}

func (s *source) typed(depth int) any {
	kind := s.byte() % 17
	if depth > 3 {
		kind %= 14
	}
	switch kind {
	case 0:
		return Null{}
	case 1:
		return s.byte() > 100
	case 2:
		return int8(s.byte())
	case 3:
		return s.byte()
	case 4:
		return int16(s.int64())
	case 5:
		return uint16(s.int64())
	case 6:
		return int32(s.int64())
	case 7:
		return uint32(s.int64())
	case 8:
		return s.int64()
	case 9:
		return math.Float32frombits(uint32(s.int64()))
	case 10:
		return math.Float64frombits(uint64(s.int64()))
	case 11:
		return Decimal{Scale: s.byte(), Value: int32(s.int64())}
	case 12:
		return time.Unix(s.int64()>>(s.byte()%40), 0).UTC()
	case 13:
		return append([]byte{}, s.bytes()...)
	case 14:
		array := []any{}
		for range s.byte() % 5 {
			array = append(array, s.nested(depth+1))
		}
		return array
	default:
		table := Table{}
		for range s.byte() % 5 {
			table[s.name()] = s.nested(depth + 1)
		}
		return table
	}
}

func (s *source) nested(depth int) any {
	if s.byte()%3 == 0 {
		return string(s.bytes())
	}
	return s.typed(depth)
}

// table is headers as a delivery of RabbitMQ has them: distinct, short names.
func (s *source) table() []Header {
	seen := map[string]bool{}
	var headers []Header
	for range int(s.byte()) % 12 {
		h := Header{Name: s.name()}
		if seen[h.Name] || len(h.Name) > 255 {
			continue
		}
		seen[h.Name] = true
		if s.byte()%2 == 0 {
			h.Value = append([]byte{}, s.value()...)
		} else {
			h.Typed = s.typed(0)
		}
		headers = append(headers, h)
	}
	return headers
}

func (s *source) amqp() AMQP {
	text := func() string { return string(s.bytes()) }
	return AMQP{Exchange: text(), RoutingKey: text(), ContentType: text(), ContentEncoding: text(), DeliveryMode: s.byte() % 3, Priority: s.byte(),
		CorrelationID: text(), ReplyTo: text(), Expiration: text(), MessageID: text(), Type: text(), UserID: text(), AppID: text()}
}

func (s *source) properties() map[string]string {
	properties := map[string]string{}
	for range int(s.byte()) % 12 {
		properties[s.name()] = string(s.value())
	}
	return properties
}

// passedOn is m as a Pigeonhole passes it on.
func (s *source) passedOn(m *Message) *Message {
	m.From = From{System: "kafka", Cluster: "c;" + string(s.bytes()), Topic: "t", Partition: int32(s.byte()) - 1, Offset: s.int64()}
	m.SetOrigin("")
	m.Hop = "a," + string(s.bytes())
	return m
}
