package message

import (
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The ways through one system.

func viaKafka(m *Message) *Message {
	key, value, headers := m.Kafka()
	at := m.Time
	if at.IsZero() || at.UnixMilli() < 0 {
		at = time.UnixMilli(1_800_000_000_000) // the producer or the broker makes one
	}
	return FromKafka(key, value, headers, at)
}

func viaPulsar(m *Message) *Message {
	key, payload, properties := m.Pulsar()
	at := m.Time
	if !at.IsZero() && at.UnixMilli() <= 0 {
		at = time.Time{}
	}
	got := FromPulsar(key, payload, properties, at)
	got.OrderingKey = m.OrderingKey
	return got
}

func viaAMQP(m *Message) *Message {
	value, a, headers, at := m.ToAMQP()
	// The client has a map of them.
	slices.Reverse(headers)
	return FromAMQP(value, a, headers, at)
}

// bare is m without what a way through the systems adds.
func bare(m *Message, amqp bool) *Message {
	c := *m
	c.Origin, c.Hops, c.Hop, c.From = Origin{}, nil, "", From{}
	if !amqp {
		c.AMQP = nil
	}
	return &c
}

// sent are the hops that are sent.
func (m *Message) sent() []string {
	if m.Hop == "" {
		return m.Hops
	}
	return append(slices.Clone(m.Hops), m.Hop)
}

// same compares messages; NaNs are equal when their bits are.
func same(t *testing.T, want, got *Message) {
	t.Helper()
	w, g := fmt.Sprintf("%#v", printable(want)), fmt.Sprintf("%#v", printable(got))
	if w != g {
		t.Fatalf("want %s\n got %s", w, g)
	}
}

func printable(m *Message) any {
	type flat struct {
		Key, Value string
		Headers    []string
		Time       time.Time
		AMQP       AMQP
		HasAMQP    bool
		Origin     Origin
		Hops       []string

		OrderingKey string
	}
	nullable := func(b []byte) string {
		if b == nil {
			return "null"
		}
		return fmt.Sprintf("%q", b)
	}
	f := flat{Key: nullable(m.Key), Value: nullable(m.Value), Time: m.Time, Origin: m.Origin, Hops: m.sent(), OrderingKey: m.OrderingKey}
	for _, h := range m.Headers {
		f.Headers = append(f.Headers, fmt.Sprintf("%q=%s %s", h.Name, nullable(h.Value), bits(h.Typed)))
	}
	if m.AMQP != nil {
		f.AMQP, f.HasAMQP = *m.AMQP, true
	}
	return f
}

func bits(v any) string {
	switch v := v.(type) {
	case float32:
		return fmt.Sprintf("float32 %x", math.Float32bits(v))
	case float64:
		return fmt.Sprintf("float64 %x", math.Float64bits(v))
	case []any:
		var parts []string
		for _, e := range v {
			parts = append(parts, bits(e))
		}
		return "[" + strings.Join(parts, ",") + "]"
	case Table:
		var parts []string
		for name, e := range v {
			parts = append(parts, fmt.Sprintf("%q:%s", name, bits(e)))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ",") + "}"
	}
	return fmt.Sprintf("%T %#v", v, v)
}

func addSeeds(f *testing.F) {
	f.Helper()
	f.Add([]byte(""))
	f.Add([]byte("key\x05hello and a value, then some headers of the usual kind"))
	for seed := range 40 {
		b := make([]byte, 120)
		x := uint32(seed)*2654435761 + 12345
		for i := range b {
			x ^= x << 13
			x ^= x >> 17
			x ^= x << 5
			b[i] = byte(x)
		}
		f.Add(b)
	}
}

func FuzzKafkaPulsarKafka(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &source{b}
		kafkaRoundTrip(t, s, viaPulsar)
	})
}

func FuzzKafkaAMQPKafka(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &source{b}
		kafkaRoundTrip(t, s, viaAMQP)
	})
}

// kafkaRoundTrip sends a record through another system and compares what comes back.
func kafkaRoundTrip(t *testing.T, s *source, via func(*Message) *Message) {
	t.Helper()
	m := FromKafka(s.bytes(), s.bytes(), s.headers(s.header), s.time())
	hadAMQP := m.AMQP != nil
	want := bare(m, hadAMQP)
	again := via(s.passedOn(m))
	same(t, want, bare(again, hadAMQP))
	assert.Equal(t, m.Origin, again.Origin)
	assert.Equal(t, m.sent(), again.Hops)

	again.Origin, again.Hops = Origin{}, nil
	if !hadAMQP {
		again.AMQP = nil
	}
	again.From = From{}
	key, value, headers := again.Kafka()
	wantKey, wantValue, wantHeaders := want.Kafka()
	assert.Equal(t, wantKey, key)
	assert.Equal(t, wantValue, value)
	assert.Equal(t, wantHeaders, headers)
	same(t, want, bare(viaKafka(again), hadAMQP))
}

func FuzzAMQPPulsarAMQP(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &source{b}
		amqpRoundTrip(t, s, viaPulsar)
	})
}

func FuzzAMQPKafkaAMQP(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &source{b}
		amqpRoundTrip(t, s, viaKafka)
	})
}

func amqpRoundTrip(t *testing.T, s *source, via func(*Message) *Message) {
	t.Helper()
	at := s.time()
	if !at.IsZero() {
		at = time.Unix(at.Unix(), 0)
		if s.byte() == 3 {
			at = time.Unix(s.int64(), 0) // somebody's nanoseconds, or worse
		}
	}
	m := FromAMQP(s.bytes(), s.amqp(), s.table(), at)
	want := bare(m, true)
	again := via(s.passedOn(m))
	same(t, want, bare(again, true))
	same(t, want, bare(viaAMQP(again), true))
}

func FuzzPulsarKafkaPulsar(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &source{b}
		pulsarRoundTrip(t, s, viaKafka)
	})
}

func FuzzPulsarAMQPPulsar(f *testing.F) {
	addSeeds(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &source{b}
		pulsarRoundTrip(t, s, viaAMQP)
	})
}

func pulsarRoundTrip(t *testing.T, s *source, via func(*Message) *Message) {
	t.Helper()
	m := FromPulsar(string(s.bytes()), s.bytes(), s.properties(), s.time())
	hadAMQP := m.AMQP != nil
	want := bare(m, hadAMQP)
	again := via(s.passedOn(m))
	same(t, want, bare(again, hadAMQP))
	if !hadAMQP {
		again.AMQP = nil
	}
	same(t, want, bare(viaPulsar(again), hadAMQP))
}

// FuzzRestore: an entry made by anybody neither panics nor loses a header.
func FuzzRestore(f *testing.F) {
	for _, seed := range []string{"0-3", "4:I", "name=Svalue", "a=A(F{b=I5,c=V},S),1,0", "0,0", "9999999999", "a=A(((((", "x=F{=}", "0:A"} {
		f.Add(seed)
	}
	plain := []Header{{Name: "a", Value: []byte("1")}, {Name: "b", Value: []byte("x")}, {Name: "c", Value: []byte("")}}
	f.Fuzz(func(t *testing.T, entry string) {
		all, ok := restore(plain, entry)
		if !ok {
			return
		}
		for _, h := range plain {
			require.True(t, slices.ContainsFunc(all, func(a Header) bool { return a.Name == h.Name }))
		}
		m := &Message{Headers: all, Value: []byte("x")}
		same(t, m, viaPulsar(m))
		same(t, bare(viaAMQP(m), false), m)
	})
}

// FuzzParseOrigin: what is parsed prints to what parses the same.
func FuzzParseOrigin(f *testing.F) {
	f.Add("kafka;main;orders;3;1042")
	f.Add("pulsar;eu;persistent://public/default/x;;;12:5:0:-1")
	f.Add("a;%3B;%FF;-5;-1;x;y")
	f.Fuzz(func(t *testing.T, text string) {
		o, ok := ParseOrigin(text)
		if !ok {
			return
		}
		again, ok := ParseOrigin(o.String())
		if !ok || !reflect.DeepEqual(o, again) {
			t.Fatalf("%#v printed as %q, which reads as %#v, %v", o, o.String(), again, ok)
		}
	})
}

// TestSizeCountsAllThatASenderCanMakeLarge: it is the bound of the messages in flight.
func TestSizeCountsAllThatASenderCanMakeLarge(t *testing.T) {
	const large = 100_000
	text := strings.Repeat("x", large)
	for name, m := range map[string]*Message{
		"key": {Key: []byte(text)}, "ordering key": {OrderingKey: text}, "value": {Value: []byte(text)}, "header": {Headers: []Header{{Name: "h", Value: []byte(text)}}},
		"name": {Headers: []Header{{Name: text}}}, "text": {Headers: []Header{{Typed: Table{"a": []any{text}}}}}, "bytes": {Headers: []Header{{Typed: []byte(text)}}},
		"table": {Headers: []Header{{Typed: Table{text: nil}}}}, "array": {Headers: []Header{{Typed: make([]any, large)}}},
		"hops": {Hops: []string{text}}, "properties": {AMQP: &AMQP{ReplyTo: text}}, "origin": {Origin: Origin{System: "kafka", Topic: text}},
	} {
		assert.GreaterOrEqual(t, m.Size(), int64(large), name)
	}
}
