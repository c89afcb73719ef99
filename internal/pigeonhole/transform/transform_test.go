package transform

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/config"
	"github.com/aviaryhq/aviary/internal/connector"
	"github.com/aviaryhq/aviary/internal/connector/kafka"
	"github.com/aviaryhq/aviary/internal/connector/message"
	"github.com/aviaryhq/aviary/internal/connector/pipeline"
	"github.com/aviaryhq/aviary/internal/connector/pulsar"
	"github.com/aviaryhq/aviary/internal/connector/rabbitmq"
)

func h(name, value string) message.Header { return message.Header{Name: name, Value: []byte(value)} }

// order is a message as most are.
func order() *message.Message {
	m := message.FromAMQP([]byte(`{"total": 120, "id": 9007199254740993, "items": ["a", "b"], "vip": true}`),
		message.AMQP{Exchange: "shop", RoutingKey: "orders.new", ContentType: "application/json"},
		[]message.Header{h("type", "order"), h("x-a", "1"), h("x-b", "2"), {Name: "tries", Typed: int32(3)}}, time.UnixMilli(1_700_000_000_000))
	m.Key = []byte("k7")
	m.From = message.From{Topic: "persistent://public/default/orders-partition-3", Partition: 3, Offset: 42}
	return m
}

func compiled(t testing.TB, cfg Config) *Transform {
	t.Helper()
	tr, err := New(cfg, connector.NameRules{})
	require.NoError(t, err)
	return tr
}

func TestFilter(t *testing.T) {
	for expression, want := range map[string]bool{
		`true`:                                     true,
		`json.total > 100`:                         true,
		`json.total > 100.5 && json.vip`:           true,
		`json.id == 9007199254740993`:              true,
		`json.id == 9007199254740992`:              false,
		`json.vip`:                                 true,
		`headers["type"] == "refund"`:              false,
		`"x-a" in headers && headers["x-a"] < "2"`: true,
		`headers["tries"] == "3"`:                  true,
		`int(headers["tries"]) < 3`:                false,
		`headers[headers["type"] == "order" ? "x-b" : "none"] == "2"`:    true,
		`has(headers.tries) && !("no" in headers)`:                       true,
		`size(headers) == 4 && headers == headers && "x-b" in headers`:   true,
		`headers == {"a": "b"}`:                                          false,
		`type(headers) == map && dyn(headers)["type"] == "order"`:        true,
		`1 in dyn(headers)`:                                              false,
		`headers.exists(name, name.startsWith("x-"))`:                    true,
		`key == b"k7" && string(key).endsWith("7")`:                      true,
		`key != null && value != null`:                                   true,
		`size(value) > 1000`:                                             false,
		`text.contains("total")`:                                         true,
		`text.matches("\"total\": *[0-9]+")`:                             true,
		`routing_key.startsWith("orders.") && exchange=="shop"`:          true,
		`amqp.content_type == "application/json" && !has(amqp.reply_to)`: true,
		`partition == 3 && offset >= 42`:                                 true,
		`topic.split("/")[4] == "orders-partition-3"`:                    true,
		`time == timestamp("2023-11-14T22:13:20Z")`:                      true,
		`time > timestamp("2030-01-01T00:00:00Z")`:                       false,
		`json.items.all(i, size(i) == 1)`:                                true,
	} {
		m := order()
		_, keep, err := compiled(t, Config{Filter: expression}).Apply(m)
		require.NoError(t, err, expression)
		assert.Equal(t, want, keep, expression)
		assert.Equal(t, order(), m, "a filter changes nothing")
	}
}

func TestNullsInExpressions(t *testing.T) {
	m := &message.Message{From: message.From{Partition: -1, Offset: -1}}
	_, keep, err := compiled(t, Config{
		Filter: `key == null && value == null && text == "" && json == null && size(headers) == 0 && partition == -1 && offset == -1 && time == null &&
			routing_key == "" && exchange == "" && size(amqp) == 0 && topic == ""`,
	}).Apply(m)
	require.NoError(t, err)
	assert.True(t, keep)
}

func TestSet(t *testing.T) {
	m := order()
	tr := compiled(t, Config{
		Set: map[string]string{
			"key":          `headers["type"] + "/" + string(json.total)`,
			"value":        `b"\xff" + value`,
			"header.type":  `text.size() > 5 ? "long" : "short"`,
			"header.x-a":   `null`,
			"header.new":   `string(key)`,
			"header.empty": `""`,
		},
		To: "q.{key}.{header.type}",
	})
	to, keep, err := tr.Apply(m)
	require.NoError(t, err)
	assert.True(t, keep)
	assert.Equal(t, "order/120", string(m.Key))
	assert.Equal(t, "\xff"+string(order().Value), string(m.Value))
	assert.Equal(t, []message.Header{{Name: "tries", Value: []byte("3"), Typed: int32(3)}, h("type", "long"), h("x-b", "2"), h("empty", ""), h("new", "k7")},
		m.Headers, "each expression saw the message as it came")
	assert.Equal(t, "q.order/120.long", to, "the destination is of the message as it leaves")

	_, _, err = compiled(t, Config{Set: map[string]string{"key": "null", "value": "null"}}).Apply(m)
	require.NoError(t, err)
	assert.Nil(t, m.Key)
	assert.Nil(t, m.Value)

	m.Headers = []message.Header{h("a", "1"), h("b", "2"), h("a", "3"), h("a", "4")}
	before := m.Headers
	_, _, err = compiled(t, Config{Set: map[string]string{"header.a": `headers["a"] + "!"`, "value": `""`}}).Apply(m)
	require.NoError(t, err)
	assert.Equal(t, []message.Header{h("b", "2"), h("a", "4!")}, m.Headers)
	assert.Equal(t, []message.Header{h("a", "1"), h("b", "2"), h("a", "3"), h("a", "4")}, before, "the source's list is not touched")
	assert.Equal(t, []byte{}, m.Value)
	assert.NotNil(t, m.Value)
}

func TestHeaders(t *testing.T) {
	for name, test := range map[string]struct {
		cfg  HeadersConfig
		want []string
	}{
		"all":          {HeadersConfig{}, []string{"tries", "type", "x-a", "x-b"}},
		"include":      {HeadersConfig{Include: []string{"x-*", "type"}}, []string{"type", "x-a", "x-b"}},
		"exclude":      {HeadersConfig{Exclude: []string{"x-*", "t*s"}}, []string{"type"}},
		"both":         {HeadersConfig{Include: []string{"x-*"}, Exclude: []string{"*a"}}, []string{"x-b"}},
		"nothing left": {HeadersConfig{Exclude: []string{"*"}}, []string{}},
		"case is told": {HeadersConfig{Include: []string{"TYPE"}}, []string{}},
	} {
		t.Run(name, func(t *testing.T) {
			m := order()
			before := m.Headers
			_, _, err := compiled(t, Config{Headers: test.cfg}).Apply(m)
			require.NoError(t, err)
			names := []string{}
			for _, h := range m.Headers {
				names = append(names, h.Name)
			}
			assert.Equal(t, test.want, names)
			assert.Equal(t, order().Headers, before)
		})
	}
}

// TestRenameBySet: what the documentation says in place of an option to rename headers.
func TestRenameBySet(t *testing.T) {
	tr := compiled(t, Config{Set: map[string]string{"header.new": `has(headers.old) ? dyn(headers.old) : null`}, Headers: HeadersConfig{Exclude: []string{"old"}}})
	for _, test := range []struct{ from, to []message.Header }{
		{[]message.Header{h("a", "1"), h("old", "2")}, []message.Header{h("a", "1"), h("new", "2")}},
		{[]message.Header{h("a", "1")}, []message.Header{h("a", "1")}},
	} {
		m := &message.Message{Headers: test.from}
		_, keep, err := tr.Apply(m)
		require.NoError(t, err)
		assert.True(t, keep)
		assert.Equal(t, test.to, m.Headers)
	}
}

func TestPatterns(t *testing.T) {
	for _, test := range []struct {
		pattern, name string
		want          bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"a", "aa", false}, {"*", "", true}, {"*", "anything", true}, {"a*", "a", true}, {"*a", "bba", true},
		{"a*b*c", "axxbyyc", true}, {"a*b*c", "axxbyy", false}, {"?", "a", false}, {"?", "?", true}, {"[a]", "a", false}, {"[a]", "[a]", true},
		{"x-*-id", "x-request-id", true}, {"**", "z", true}, {"*\xff", "a\xff", true},
		{strings.Repeat("a*", 1000) + "b", strings.Repeat("a", 100_000), false},
	} {
		assert.Equal(t, test.want, matches(test.pattern, test.name), "%.20s %.20s", test.pattern, test.name)
	}
}

func TestDestination(t *testing.T) {
	for template, want := range map[string]string{
		"":       "",
		"orders": "orders",
		"persistent://public/default/{topic_name}": "persistent://public/default/orders",
		"{topic}": "persistent://public/default/orders-partition-3",
		"{exchange}.{routing_key}.{key}.{partition}": "shop.orders.new.k7.3",
		"t-{header.type}-{header.none:-other}":       "t-order-other",
		"{header.none:-a:-b}":                        "a:-b",
		"{header.tries}":                             "3",
	} {
		to, keep, err := compiled(t, Config{To: template}).Apply(order())
		require.NoError(t, err, template)
		assert.True(t, keep)
		assert.Equal(t, want, to, template)
	}
	bare := &message.Message{From: message.From{Topic: "orders", Partition: -1}, Headers: []message.Header{
		h("empty", ""), {Name: "null"}, h("binary", "\xff"), h("control", "a\nb"), h("slash", "a/b"), h("long", strings.Repeat("x", 2000)),
	}}
	for template, says := range map[string]string{
		"{header.none}":    `the destination needs the header "none", which the message does not have`,
		"{header.empty}":   `needs the header "empty"`,
		"{header.null}":    `needs the header "null"`,
		"x{key}":           "needs key",
		"{partition}":      "needs partition",
		"{routing_key}":    "needs routing key",
		"{exchange}":       "needs exchange",
		"{header.binary}":  "not valid UTF-8",
		"{header.control}": "control characters",
		"{header.long}":    "2000 bytes",
	} {
		_, keep, err := compiled(t, Config{To: template}).Apply(bare)
		assert.False(t, keep)
		require.ErrorContains(t, err, says)
		reason, ok := pipeline.Refused(err)
		assert.True(t, ok)
		assert.Equal(t, "template", reason)
	}
	to, _, err := compiled(t, Config{To: "{topic_name}.{header.slash}"}).Apply(bare)
	require.NoError(t, err)
	assert.Equal(t, "orders.a/b", to)
}

// TestValuesDoNotMakeStructure: a value fills a name. It does not select a namespace, a partition
// or a topic of the system's own. The operator's text may.
func TestValuesDoNotMakeStructure(t *testing.T) {
	exchange := rabbitmq.DefaultSinkConfig()
	exchange.Exchange = "amq.topic"
	into := map[string]connector.NameRules{
		"pulsar": pulsar.DefaultSinkConfig().NameRules(), "kafka": kafka.DefaultSinkConfig().NameRules(),
		"rabbitmq": rabbitmq.DefaultSinkConfig().NameRules(), "exchange": exchange.NameRules(),
	}
	const (
		namespace = "contains '/', which would select a topic of another namespace"
		internal  = `begins with "__"`
		partition = "as Pulsar names the partitions of a topic"
		step      = "reads as a step in a path"
		amq       = `begins with "amq.", which RabbitMQ reserves for its own queues`
	)
	for _, test := range []struct{ sink, to, value, want, refused string }{
		{sink: "pulsar", to: "{key}", value: "orders", want: "orders"},
		{sink: "pulsar", to: "{key}", value: "persistent://other/ns/x", refused: "key cannot be part of the destination: it " + namespace},
		{sink: "pulsar", to: "{key}", value: "a/b/c", refused: namespace},
		{sink: "pulsar", to: "orders-{key}", value: "a/b/c", refused: namespace},
		{sink: "pulsar", to: "{header.h}", value: "a/b/c", refused: `the header "h" cannot be part`},
		{sink: "pulsar", to: "{routing_key}", value: "a/b/c", refused: "routing key cannot be part"},
		{sink: "pulsar", to: "{exchange}", value: "a/b/c", refused: "exchange cannot be part"},
		{sink: "pulsar", to: "{header.none:-a/b/c}", want: "a/b/c"},
		{sink: "pulsar", to: "persistent://a/b/{key}", value: "c", want: "persistent://a/b/c"},
		{sink: "pulsar", to: "persistent://a/b/{key}", value: "/c", refused: namespace},
		{sink: "pulsar", to: "persistent://a/{key}/c", value: "b", want: "persistent://a/b/c"},
		{sink: "pulsar", to: "persistent://a/{key}/c", value: "..", refused: step},
		{sink: "pulsar", to: "persistent://a/..{key}/c", value: "b", want: "persistent://a/..b/c"},
		{sink: "pulsar", to: "persistent://a/.{key}/c", value: ".", refused: step},
		{sink: "pulsar", to: "persistent://a/../{key}", value: "..", refused: step},
		{sink: "pulsar", to: "persistent://a/../{key}", value: "c", want: "persistent://a/../c"},
		{sink: "pulsar", to: "{key}", value: ".", refused: step},
		{sink: "pulsar", to: "{key}", value: "...", want: "..."},
		{sink: "pulsar", to: "{key}", value: "__change_events", refused: `the destination "__change_events" is not allowed: its last part ` + internal},
		{sink: "pulsar", to: "persistent://a/b/{key}", value: "__change_events", refused: internal},
		{sink: "pulsar", to: "_{key}", value: "_change_events", refused: internal},
		{sink: "pulsar", to: "__{key}", value: "change_events", want: "__change_events"},
		{sink: "pulsar", to: "__{key}", value: "a-partition-0", refused: partition},
		{sink: "pulsar", to: "{header.none:-__}{key}", value: "x", want: "__x"},
		{sink: "pulsar", to: "{header.none:-_}{key}", value: "_x", refused: internal},
		{sink: "pulsar", to: "{key}", value: "a__b", want: "a__b"},
		{sink: "pulsar", to: "{key}", value: "a__transaction_pending_ack", refused: `ends in "__transaction_pending_ack"`},
		{sink: "pulsar", to: "__{key}", value: "a__transaction_pending_ack", refused: `ends in "__transaction_pending_ack"`},
		{sink: "pulsar", to: "{key}", value: "orders-partition-0", refused: `it ends in "-partition-0", ` + partition},
		{sink: "pulsar", to: "orders-partition{key}", value: "-0", refused: partition},
		{sink: "pulsar", to: "orders-partition-{key}", value: "0", refused: partition},
		{sink: "pulsar", to: "orders-{key}-{partition}", value: "partition", refused: partition},
		{sink: "pulsar", to: "{key}", value: "orders-partition-+0", refused: partition},
		{sink: "pulsar", to: "{key}", value: "orders-partition-\u0663", refused: partition},
		{sink: "pulsar", to: "{key}", value: "orders-partition-b", refused: partition},
		{sink: "pulsar", to: "{key}-partition-{partition}", value: "orders", want: "orders-partition-3"},
		{sink: "pulsar", to: "persistent://a/b/c-partition-{partition}", want: "persistent://a/b/c-partition-3"},
		{sink: "pulsar", to: "persistent://a/b/__c", want: "persistent://a/b/__c"},
		{sink: "pulsar", to: "persistent://a/b/{topic_name}", want: "persistent://a/b/orders"},
		{sink: "pulsar", to: "x-{topic}", refused: "topic cannot be part of the destination: it " + namespace},

		{sink: "kafka", to: "{key}", value: "orders-partition-0", want: "orders-partition-0"},
		{sink: "kafka", to: "{key}", value: "__consumer_offsets", refused: `the destination "__consumer_offsets" is not allowed: it ` + internal},
		{sink: "kafka", to: "__{key}", value: "audit", want: "__audit"},
		{sink: "kafka", to: "_{key}", value: "_consumer_offsets", refused: internal},

		{sink: "rabbitmq", to: "{key}", value: "a/b/c", want: "a/b/c"},
		{sink: "rabbitmq", to: "{key}", value: "amq.gen-1", refused: amq},
		{sink: "rabbitmq", to: "{header.h}", value: "amq.rabbitmq.reply-to.x", refused: amq},
		{sink: "rabbitmq", to: "am{key}", value: "q.gen-1", refused: amq},
		{sink: "rabbitmq", to: "amq.{key}", value: "gen-1", want: "amq.gen-1"},
		{sink: "rabbitmq", to: "{key}", value: "amqp", want: "amqp"},
		{sink: "exchange", to: "{key}", value: "amq.gen-1", want: "amq.gen-1"},
	} {
		name := test.sink + " " + test.to + " " + test.value
		m := message.FromAMQP(nil, message.AMQP{Exchange: test.value, RoutingKey: test.value}, []message.Header{h("h", test.value)}, time.Time{})
		m.Key = []byte(test.value)
		m.From = message.From{System: "pulsar", Topic: "persistent://public/default/__orders-partition-3", Partition: 3}
		if strings.Contains(test.to, "{topic_name}") {
			m.From.Topic = "persistent://public/default/orders"
		}
		tr, err := New(Config{To: test.to}, into[test.sink])
		require.NoError(t, err, name)
		to, keep, err := tr.Apply(m)
		if test.refused == "" {
			require.NoError(t, err, name)
			assert.True(t, keep, name)
			assert.Equal(t, test.want, to, name)
			continue
		}
		assert.False(t, keep, name)
		if assert.ErrorContains(t, err, test.refused, name) {
			reason, _ := pipeline.Refused(err)
			assert.Equal(t, "template", reason, name)
		}
	}
}

func TestARefusedMessageIsAsItCame(t *testing.T) {
	for _, cfg := range []Config{
		{Set: map[string]string{"key": `"new"`, "header.type": `"new"`}, Headers: HeadersConfig{Exclude: []string{"x-*"}}, To: "{header.none}"},
		{Set: map[string]string{"header.type": `"new"`, "key": `headers["none"]`}, Headers: HeadersConfig{Exclude: []string{"x-*"}}},
	} {
		m := order()
		_, keep, err := compiled(t, cfg).Apply(m)
		require.Error(t, err)
		assert.False(t, keep)
		assert.Equal(t, order(), m)
	}
}

func TestExpressionsThatFailOnAMessage(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		cfg  Config
		m    *message.Message
		says string
	}{
		"a header that is not there, by a name of the message": {Config{Filter: `headers[exchange] == "x"`}, order(), "filter: no such key: shop"},
		"a header that is not there":                           {Config{Filter: `headers["no"] == "x"`}, order(), "filter: no such key: no"},
		"not a number":                                         {Config{Filter: `int(headers["type"]) > 1`}, order(), "filter: "},
		"not JSON":                                             {Config{Filter: `json.a`}, &message.Message{Value: []byte("{")}, "the value is not JSON"},
		"JSON and more":                                        {Config{Filter: `json.a`}, &message.Message{Value: []byte(`{"a":true} x`)}, "the value is not JSON"},
		"an empty value as JSON":                               {Config{Filter: `json.a`}, &message.Message{Value: []byte{}}, "the value is not JSON"},
		"JSON nested too deep":                                 {Config{Filter: `json.a`}, &message.Message{Value: []byte(strings.Repeat("[", 100_000))}, "the value is not JSON"},
		"a number out of range":                                {Config{Filter: `json > 1`}, &message.Message{Value: []byte("1e999")}, "out of range"},
		"a field of a null":                                    {Config{Filter: `json.a`}, &message.Message{}, "filter: "},
		"invalid UTF-8":                                        {Config{Filter: `text == ""`}, &message.Message{Value: []byte{0xff}}, "not valid UTF-8"},
		"a null key as text":                                   {Config{Set: map[string]string{"header.k": `string(key)`}}, &message.Message{}, "set.header.k: "},
		"a filter that is no bool":                             {Config{Filter: `json.total`}, order(), "must be true or false, got int"},
		"a key that is no text":                                {Config{Set: map[string]string{"key": `json.total`}}, order(), "set.key: the result must be a string, bytes or null, got int"},
		"too expensive": {Config{Filter: `json.all(a, json.all(b, json.all(c, a + b + c > 0)))`},
			&message.Message{Value: []byte("[1" + strings.Repeat(",1", 999) + "]")}, "cost limit exceeded"},
	} {
		t.Run(name, func(t *testing.T) {
			_, keep, err := compiled(t, test.cfg).Apply(test.m)
			assert.False(t, keep)
			require.ErrorContains(t, err, test.says)
			assert.NotContains(t, err.Error(), "\n")
			reason, ok := pipeline.Refused(err)
			assert.True(t, ok)
			assert.Equal(t, "expression", reason)
		})
	}
}

func TestFaults(t *testing.T) {
	type route struct {
		Transform Config `yaml:"transform"`
	}
	for says, cfg := range map[string]Config{
		`transform.filter: must be true or false, got an expression of type string`:                  {Filter: `topic`},
		`transform.filter: does not compile: column 1: there is no nothing; the variables are amqp,`: {Filter: `nothing == 1`},
		`transform.filter: does not compile: column 9: it ends too early`:                            {Filter: `topic ==`},
		`found no matching overload for '_==_' applied to '(int, string)'`:                           {Filter: `partition == "1"`},
		`transform.filter: must give replace() a constant text`:                                      {Filter: `text.replace("a", text) == ""`},
		`transform.filter: must give join() a constant text`:                                         {Filter: `["a"].join(topic) == ""`},
		`transform.filter: must give format() a constant text`:                                       {Filter: `topic.format([1]) == ""`},
		`transform.set.key: must be a string, bytes or null`:                                         {Set: map[string]string{"key": `partition`}},
		`transform.set.header.a: does not compile`:                                                   {Set: map[string]string{"header.a": `(`}},
		`transform.set.header.: must name a header`:                                                  {Set: map[string]string{"header.": `""`}},
		`transform.set.header.pigeonhole.hops: must not begin with pigeonhole.`:                      {Set: map[string]string{"header.pigeonhole.hops": `""`}},
		`transform.set.topic: must be key, value or header.NAME, got "topic"`:                        {Set: map[string]string{"topic": `""`}},
		`transform.headers.include[1]: must be a header's name`:                                      {Headers: HeadersConfig{Include: []string{"a", ""}}},
		`transform.headers.exclude[0]: must be a header's name`:                                      {Headers: HeadersConfig{Exclude: []string{""}}},
		`transform.to: may contain only {topic}`:                                                     {To: "x{what}"},
		`transform.to: has a '{' without its '}'`:                                                    {To: "x{key"},
		`transform.to: has a '}' without its '{'`:                                                    {To: "x}"},
		`transform.to: gives {key} an empty default`:                                                 {To: "{key:-}"},
	} {
		faults := config.Validate(route{cfg})
		if assert.Len(t, faults, 1, says) {
			assert.Contains(t, faults[0].Error(), says)
		}
	}
	all := config.Validate(route{Config{Filter: "x", To: "{", Set: map[string]string{"key": "y", "z": "''"}, Headers: HeadersConfig{Include: []string{""}}}})
	assert.Len(t, all, 5, "%v", all)
	assert.Empty(t, config.Validate(route{}))
}

func TestBadInput(t *testing.T) {
	var many []message.Header
	for i := range 10_000 {
		many = append(many, h(fmt.Sprint("h", i), strings.Repeat("v", 100)))
	}
	many = append(many, h("\xff", "\xfe"), h("", ""), message.Header{Name: "null"})
	tr := compiled(t, Config{
		Filter:  `headers["h9999"].startsWith("v") && headers["null"] == "" && size(headers[""]) == 0`,
		Headers: HeadersConfig{Exclude: []string{"h1*"}},
		Set:     map[string]string{"header.h3": `headers["h4"]`},
		To:      "{header.h9999}",
	})
	m := &message.Message{Headers: many, Value: []byte{0xff}}
	to, keep, err := tr.Apply(m)
	require.NoError(t, err)
	assert.True(t, keep)
	assert.Len(t, to, 100)
	assert.Len(t, m.Headers, 10_003-1111)
	assert.Equal(t, h("\xff", "\xfe"), m.Headers[len(m.Headers)-3])
}

func TestApplyAtOnceFromMany(t *testing.T) {
	tr := compiled(t, Config{Filter: `json.total > 100`, Set: map[string]string{"key": `headers["type"]`}, To: "{key}"})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				m := order()
				to, keep, err := tr.Apply(m)
				assert.NoError(t, err)
				assert.True(t, keep)
				assert.Equal(t, "order", to)
			}
		})
	}
	wg.Wait()
}

func TestNothingConfiguredCostsNothing(t *testing.T) {
	tr, m := compiled(t, Config{To: "orders"}), order()
	assert.Zero(t, testing.AllocsPerRun(100, func() { _, _, _ = tr.Apply(m) }))
}

// FuzzTemplate: no template and no message makes it panic, nor selects a topic of another namespace.
func FuzzTemplate(f *testing.F) {
	f.Add("persistent://public/default/{header.a:-x}", "v")
	f.Add("{{{key}}}{topic_name}", "a/b-partition-1")
	f.Fuzz(func(t *testing.T, text, value string) {
		tr, err := parseTemplate(text, pulsar.DefaultSinkConfig().NameRules())
		if err != nil {
			return
		}
		m := &message.Message{Key: []byte(value), From: message.From{Topic: value}, Headers: []message.Header{h("a", value)}}
		to, err := tr.destination(m)
		if err == nil && strings.Count(to, "/") > strings.Count(text, "/") {
			t.Fatalf("%q and %q give %q", text, value, to)
		}
	})
}

func FuzzPattern(f *testing.F) {
	f.Add("a*b", "axxb")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if !strings.Contains(pattern, "*") && matches(pattern, name) != (pattern == name) {
			t.Fatalf("%q %q", pattern, name)
		}
		if !matches(pattern+"*", name) && matches(pattern, name) {
			t.Fatalf("%q matches %q, but not with a star behind", pattern, name)
		}
	})
}

func BenchmarkApply(b *testing.B) {
	for name, cfg := range map[string]Config{
		"nothing":  {To: "orders"},
		"template": {To: "persistent://public/default/{topic_name}"},
		"topic":    {Filter: `topic.startsWith("persistent")`},
		"header":   {Filter: `headers["type"] == "order"`},
		"json":     {Filter: `json.total > 100`},
		"set":      {Set: map[string]string{"key": `headers["type"]`}},
		"headers":  {Headers: HeadersConfig{Exclude: []string{"x-*"}}},
	} {
		b.Run(name, func(b *testing.B) {
			tr, err := New(cfg, pulsar.DefaultSinkConfig().NameRules())
			require.NoError(b, err)
			m := order()
			headers := m.Headers
			b.ReportAllocs()
			for b.Loop() {
				m.Headers = headers
				if _, _, err := tr.Apply(m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// FuzzApply: no message makes an expression panic, and one that is refused is as it was.
func FuzzApply(f *testing.F) {
	tr := compiled(f, Config{
		Filter: `has(headers.a) && headers["a"] != "drop" || json.a[0] > 1 || json == text || size(amqp) > 0`,
		Set:    map[string]string{"key": `json.k`, "header.b": `dyn(headers)[text]`, "value": `base64.decode(text)`},
		To:     "{key:-none}/{header.b:-none}",
	})
	f.Add([]byte("k"), []byte(`{"a": [2], "k": "x"}`), "a", "v")
	f.Add([]byte(nil), []byte("eA=="), "a", "\xff")
	f.Add([]byte(nil), []byte("[[[[1e400]]]]"), "\xff", "drop")
	f.Fuzz(func(t *testing.T, key, value []byte, name, header string) {
		m := &message.Message{Key: key, Value: value, Headers: []message.Header{h(name, header), {Name: "null"}}}
		before := *m
		_, keep, err := tr.Apply(m)
		if err != nil || !keep {
			assert.Equal(t, before, *m)
		}
		if err != nil && strings.Contains(err.Error(), "internal error") {
			t.Fatal(err)
		}
	})
}

// TestNewKeyOrders: Pulsar's ordering key would take its place.
func TestNewKeyOrders(t *testing.T) {
	m := &message.Message{Key: []byte("old"), OrderingKey: "before"}
	_, keep, err := compiled(t, Config{Set: map[string]string{"value": `"v"`}, To: "t"}).Apply(m)
	require.NoError(t, err)
	require.True(t, keep)
	assert.Equal(t, "before", m.OrderingKey)
	_, _, err = compiled(t, Config{Set: map[string]string{"key": `"new"`}, To: "t"}).Apply(m)
	require.NoError(t, err)
	assert.Equal(t, []byte("new"), m.Key)
	assert.Empty(t, m.OrderingKey)
}
