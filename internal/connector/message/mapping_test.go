package message

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func at(ms int64) time.Time { return time.UnixMilli(ms).UTC() }

// begun is m as a route passes it on that has taken it from Kafka.
func (m *Message) begun(offset int64) {
	m.From = From{System: "kafka", Cluster: "main", Topic: "orders", Partition: 3, Offset: offset}
	m.SetOrigin("")
	m.Hop = "kafka;main;orders"
}

func h(name, value string) Header { return Header{Name: name, Value: []byte(value)} }

// TestAPlainRecordIsPlainEverywhere is what people see of the usual message.
func TestAPlainRecordIsPlainEverywhere(t *testing.T) {
	record := func() *Message {
		m := FromKafka([]byte("order-7"), []byte(`{"total":12}`), []Header{h("content-type", "application/json"), h("trace", "abc")}, at(1_700_000_000_123))
		m.begun(1042)
		return m
	}
	key, payload, properties := record().Pulsar()
	assert.Equal(t, "order-7", key)
	assert.JSONEq(t, `{"total":12}`, string(payload))
	assert.Equal(t, map[string]string{
		"content-type":      "application/json",
		"trace":             "abc",
		"pigeonhole.origin": "kafka;main;orders;3;1042",
		"pigeonhole.hops":   "kafka;main;orders",
	}, properties)

	value, a, headers, when := record().ToAMQP()
	assert.JSONEq(t, `{"total":12}`, string(value))
	assert.Equal(t, AMQP{}, a)
	assert.Equal(t, time.Unix(1_700_000_000, 0).UTC(), when)
	assert.Equal(t, []Header{
		h("content-type", "application/json"), h("trace", "abc"), h("pigeonhole.key", "order-7"), h("pigeonhole.time", "1700000000123"),
		h("pigeonhole.origin", "kafka;main;orders;3;1042"), h("pigeonhole.hops", "kafka;main;orders"),
	}, headers)

	_, _, headers = record().Kafka()
	assert.Equal(t, []Header{
		h("content-type", "application/json"), h("trace", "abc"), h("pigeonhole.origin", "kafka;main;orders;3;1042"), h("pigeonhole.hops", "kafka;main;orders"),
	}, headers)
}

// TestAnAMQPMessageInPulsar: texts of scalars are properties, and one entry has the
// types and what is not a scalar.
func TestAnAMQPMessageInPulsar(t *testing.T) {
	m := FromAMQP([]byte("x"), AMQP{Exchange: "shop", RoutingKey: "orders.new", ContentType: "text/plain", DeliveryMode: 2, CorrelationID: "a&b=c"}, []Header{
		{Name: "retries", Typed: int32(3)},
		h("source", "web"),
		{Name: "price", Typed: Decimal{Scale: 2, Value: -1999}},
		{Name: "x-death", Typed: []any{Table{"queue": "q,1", "count": int64(2), "time": time.Unix(1_700_000_000, 0)}}},
		{Name: "nothing", Typed: nil},
		{Name: "raw", Typed: []byte{0xff}},
		{Name: "paid", Typed: true},
	}, time.Unix(1_700_000_000, 0))
	_, _, properties := m.Pulsar()
	assert.Equal(t, map[string]string{
		"retries":         "3",
		"source":          "web",
		"price":           "-19.99",
		"paid":            "true",
		"pigeonhole.amqp": "exchange=shop&routing_key=orders.new&content_type=text/plain&correlation_id=a%26b%3Dc&delivery_mode=2",
		"pigeonhole.headers": "nothing=V,0:t,1:D,raw=x_w,2:I,3," +
			"x-death=A(F{count=l2,queue=Sq%2C1,time=T2023-11-14T22:13:20Z})",
	}, properties)
	same(t, m, viaPulsar(m))

	value, ok := m.Header("x-death")
	assert.True(t, ok)
	assert.JSONEq(t, `[{"count":2,"queue":"q,1","time":"2023-11-14T22:13:20Z"}]`, string(value), "to read and to filter by")
}

// TestEachRule sends one peculiarity after the other through every system.
func TestEachRule(t *testing.T) {
	many := make([]Header, 10_000)
	for i := range many {
		many[i] = h(fmt.Sprintf("name-%d", i*7919%10_000), "v")
	}
	for name, m := range map[string]*Message{
		"nothing at all":            {},
		"null key and value":        {Headers: []Header{h("a", "1")}},
		"empty key and value":       {Key: []byte{}, Value: []byte{}},
		"binary key":                {Key: []byte{0xff, 0, 1}, Value: []byte("v")},
		"a key that looks encoded":  {Key: []byte("/wAB"), Value: []byte("v")},
		"headers not by name":       {Headers: []Header{h("b", "1"), h("a", "2")}},
		"duplicates":                {Headers: []Header{h("a", "1"), h("b", "x"), h("a", "2"), h("a", "2")}},
		"binary and null values":    {Headers: []Header{h("a", "\xff\xfe"), {Name: "b"}, h("c", "")}},
		"an empty name":             {Headers: []Header{h("", "1"), h("", "2")}},
		"a name that is no text":    {Headers: []Header{h("\xffname", "1")}},
		"a name of 300 bytes":       {Headers: []Header{h(strings.Repeat("n", 300), "1")}},
		"names of our entries":      {Headers: []Header{h(EntryHeaders, "0"), h(EntryOrigin, "kafka;c;t;1;2"), h(EntryHops, "x"), h(EntryTime, "none")}},
		"a name with our prefix":    {Headers: []Header{h(Prefix+"later", "1")}},
		"special bytes":             {Headers: []Header{h("a,b=c(d){e}%", "v,=(){}%\n"), h("a,b=c(d){e}%", "again")}},
		"names like numbers":        {Headers: []Header{h("1", "a"), h("0", "b"), h("0-1", "c"), h("0-1", "d")}},
		"ten thousand headers":      {Headers: many},
		"ten thousand of one name":  {Headers: slices.Repeat([]Header{h("a", "1")}, 10_000)},
		"an ordering key":           {OrderingKey: "ä%\xff\n"},
		"a time":                    {Time: at(1_700_000_000_123)},
		"1970":                      {Time: at(0)},
		"before 1970":               {Time: at(-1500)},
		"one millisecond before":    {Time: at(-1)},
		"typed text that is binary": {Headers: []Header{{Name: "a", Value: []byte{0xff}, Typed: []byte{0xff}}}},
		"typed text that is empty":  {Headers: []Header{{Name: "a", Value: []byte{}, Typed: []byte{}}}},
	} {
		t.Run(name, func(t *testing.T) {
			m.begun(1042)
			same(t, m, viaKafka(m))
			same(t, m, viaPulsar(m))
			same(t, bare(m, false), bare(viaAMQP(m), false))
			same(t, bare(m, false), bare(viaPulsar(viaAMQP(viaKafka(viaPulsar(m)))), false))
		})
	}
}

// TestTypedValues are all of AMQP's types, at the extremes.
func TestTypedValues(t *testing.T) {
	nested := any(Null{})
	for range 1000 {
		nested = []any{nested, Table{"t": int8(-1)}}
	}
	for text, v := range map[string]any{
		"false": false, "-128": int8(-128), "255": uint8(255), "-32768": int16(-32768), "65535": uint16(65535), "-2147483648": int32(-2147483648),
		"4294967295": uint32(4294967295), "-9223372036854775808": int64(-9223372036854775808), "1.5": float32(1.5), "1e+300": 1e300,
		"-0.05": Decimal{Scale: 2, Value: -5}, "12": Decimal{Value: 12}, "0." + strings.Repeat("0", 254) + "1": Decimal{Scale: 255, Value: 1},
		"2023-11-14T22:13:20Z": time.Unix(1_700_000_000, 0), "@1700000000000000000": time.Unix(1_700_000_000_000_000_000, 0), "bytes": []byte("bytes"),
		"[]": []any{}, "{}": Table{}, `{"a":[null,"x",1.5]}`: Table{"a": []any{nil, "x", 1.5}}, "": nested,
	} {
		m := FromAMQP(nil, AMQP{}, []Header{{Name: "h", Typed: v}}, time.Time{})
		if text != "" {
			assert.Equal(t, text, string(m.Headers[0].Value))
		}
		same(t, m, viaPulsar(m))
		same(t, m, viaKafka(m))
		same(t, m, viaAMQP(m))
	}
}

// TestPropertiesChangedOnTheWay: a stranger between two Pigeonholes may add, change and
// remove what he sees; the rest survives.
func TestPropertiesChangedOnTheWay(t *testing.T) {
	m := FromKafka(nil, []byte("v"), []Header{h("z", "1"), h("b", "\xff"), h("a", "2"), h("m", "3")}, time.Time{})
	_, _, properties := m.Pulsar()
	delete(properties, "z")
	properties["a"] = "changed"
	properties["new"] = "4"
	got := FromPulsar("", []byte("v"), properties, time.Time{})
	assert.ElementsMatch(t, []Header{h("a", "changed"), h("b", "\xff"), h("m", "3"), h("new", "4")}, got.Headers)

	typed := FromAMQP(nil, AMQP{}, []Header{{Name: "n", Typed: int32(1)}}, time.Time{})
	_, _, properties = typed.Pulsar()
	properties["n"] = "not a number"
	assert.Equal(t, []Header{h("n", "not a number")}, FromPulsar("", nil, properties, time.Time{}).Headers)
}

// TestEntriesThatAreNotOurs are headers like others.
func TestEntriesThatAreNotOurs(t *testing.T) {
	t.Parallel()
	for name, values := range map[string][]string{
		EntryHeaders:     {"x", "0,0", "1-0", "a=" + strings.Repeat("A(", 1_000_000), "a=" + strings.Repeat("F{a=", 1_000_000), "=", "a=", "a=Q", "a=A(", "a=F{x}", "a=I99999999999", "a=S%zz", "0:A", "-1", "1:", strings.Repeat("a=A(", 100)},
		EntryOrigin:      {"", "kafka", "a;b;c;d;e", "a;b;c;1", "a;b;c;1;2;3;4", ";;;0;0", "%;b;c;1;2", "a;b;c;9999999999;1"},
		EntryHops:        {"", ",", "a,,b", "%"},
		EntryAMQP:        {"x", "what=ever", "priority=256", "type=%4"},
		EntryKeyEncoding: {"", "rot13"},
		EntryTime:        {"", "x", "1.5", "s"},
	} {
		for _, value := range values {
			m := FromPulsar("k", []byte("v"), map[string]string{name: value, "a": "1"}, time.Time{})
			assert.ElementsMatch(t, []Header{h("a", "1"), h(name, value)}, m.Headers, "%s=%s", name, value)
			assert.True(t, m.Origin.IsZero())
			assert.Empty(t, m.Hops)
			same(t, m, viaPulsar(m))
			same(t, m, viaKafka(m))
		}
	}
	assert.Equal(t, []byte("k"), FromPulsar("k", nil, map[string]string{EntryKeyEncoding: "empty"}, time.Time{}).Key)
	assert.Equal(t, []byte("%"), FromPulsar("%", nil, map[string]string{EntryKeyEncoding: "base64"}, time.Time{}).Key)
}

func TestOriginIsTheFirst(t *testing.T) {
	m := FromKafka(nil, []byte("v"), nil, at(1))
	first := Origin{System: "kafka", Cluster: "a;b", Topic: "orders", Partition: 0, Offset: 0, ID: "of the topic"}
	m.From = From{System: "kafka", Cluster: "a;b", Topic: "orders"}
	m.SetOrigin("of the topic")
	m.Hop = "one"
	_, _, properties := m.Pulsar()
	assert.NotContains(t, properties, EntryFrom, "the origin says it")
	place, ok := Place(properties)
	assert.True(t, ok)
	assert.Equal(t, first, place)

	m = viaPulsar(m)
	m.From = From{System: "pulsar", Cluster: "p", Topic: "copy", Partition: 5, Offset: 99}
	m.SetOrigin("1:2:3:4")
	m.Hop = "two"
	assert.Equal(t, first, m.Origin)
	_, _, properties = m.Pulsar()
	assert.Equal(t, "one,two", properties[EntryHops])
	place, ok = Place(properties)
	assert.True(t, ok)
	assert.Equal(t, Origin{System: "pulsar", Cluster: "p", Topic: "copy", Partition: 5, Offset: 99}, place, "what effectively once goes on after")
	assert.Empty(t, viaPulsar(m).Headers)

	_, ok = Place(map[string]string{"a": "b"})
	assert.False(t, ok)
	_, ok = Place(map[string]string{EntryOrigin: "kafka;main;orders;3;999999", EntryFrom: "kafka;main;orders;3;999999"})
	assert.False(t, ok, "no route has written that")
}

// TestOriginWithoutHopsIsAnApplications: no route has written it. It is a header like others, and
// comes back.
func TestOriginWithoutHopsIsAnApplications(t *testing.T) {
	own := []Header{h(EntryFrom, "kafka;main;orders;3;999998"), h(EntryOrigin, "kafka;main;orders;3;999999")}
	for name, m := range map[string]*Message{
		"kafka":  FromKafka(nil, []byte("v"), own, at(1)),
		"pulsar": FromPulsar("", []byte("v"), map[string]string{own[0].Name: string(own[0].Value), own[1].Name: string(own[1].Value)}, at(1)),
		"amqp":   FromAMQP([]byte("v"), AMQP{}, own, at(1)),
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, own, m.Headers)
			m.begun(17)
			_, _, properties := m.Pulsar()
			place, ok := Place(properties)
			require.True(t, ok)
			assert.EqualValues(t, 17, place.Offset)
			for _, again := range []*Message{viaPulsar(m), viaKafka(m), viaAMQP(m)} {
				assert.Equal(t, own, again.Headers)
				assert.Equal(t, m.Origin, again.Origin)
			}
		})
	}
}

func TestHops(t *testing.T) {
	m := &Message{}
	for i := range 3 {
		require.NoError(t, m.CheckHops(3))
		m.Hop = PlaceName("kafka", "a,b", fmt.Sprint("t;", i))
		m = viaKafka(m)
	}
	err := m.CheckHops(3)
	require.ErrorIs(t, err, ErrHops)
	assert.ErrorContains(t, err, "kafka;a,b;t%3B0, kafka;a,b;t%3B1, kafka;a,b;t%3B2")
	assert.True(t, m.HasPassed(PlaceName("kafka", "a,b", "t;1")))
	assert.False(t, m.HasPassed(PlaceName("kafka", "a", "t;1")))
	assert.False(t, m.HasPassed(PlaceName("pulsar", "a,b", "t;1")))
}

// TestPlaceNames: one topic of Pulsar has one name.
func TestPlaceNames(t *testing.T) {
	for topic, want := range map[string]string{
		"orders": "orders", "persistent://public/default/orders": "orders", "public/default/orders-partition-3": "orders",
		"persistent://a/b/orders": "a/b/orders", "a/b/orders": "a/b/orders", "non-persistent://public/default/orders": "non-persistent://public/default/orders",
		"orders-partition-x": "orders-partition-x",
	} {
		assert.Equal(t, "pulsar;p;"+want, PlaceName("pulsar", "p", topic))
	}
	assert.Equal(t, "kafka;k;orders-partition-3", PlaceName("kafka", "k", "orders-partition-3"))
}

// TestThePlainWayIsCheap: a message of Kafka without headers costs itself, a
// map (two allocations) and one text for all of key and entries.
func TestThePlainWayIsCheap(t *testing.T) {
	key, value, when := []byte("order-1234567"), make([]byte, 512), at(1_700_000_000_000)
	n := testing.AllocsPerRun(100, func() {
		m := FromKafka(key, value, nil, when)
		m.begun(1042)
		_, _, _ = m.Pulsar()
	})
	assert.LessOrEqual(t, n, 4.0)
	text := "kafka;main;orders;3;1042"
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _ = ParseOrigin(text) }))
}

func BenchmarkKafkaToPulsar(b *testing.B) {
	key, value := []byte("order-1234567"), make([]byte, 512)
	for name, headers := range map[string][]Header{
		"no headers":      nil,
		"three headers":   {h("content-type", "application/json"), h("id", "7f3a"), h("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")},
		"three, unsorted": {h("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"), h("content-type", "application/json"), h("id", "7f3a")},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			when := time.UnixMilli(1_700_000_000_000)
			for i := range b.N {
				m := FromKafka(key, value, headers, when)
				m.begun(int64(i))
				if _, _, properties := m.Pulsar(); len(properties) < 2 {
					b.Fatal("properties are missing")
				}
			}
		})
	}
}

func BenchmarkPulsarToKafka(b *testing.B) {
	properties := map[string]string{EntryOrigin: "kafka;main;orders;3;1042", EntryHops: "dc1", "id": "7f3a"}
	value := make([]byte, 512)
	b.ReportAllocs()
	for range b.N {
		m := FromPulsar("order-1234567", value, properties, time.Time{})
		_, _, _ = m.Kafka()
	}
}
