package template_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
	"github.com/aviaryhq/aviary/internal/eventbridge/template"
)

const order = `{"specversion":"1.0","id":"7","source":"/shop","type":"order.placed","data":{"id":1042,"who":"J\u00fcrgen \"J\" \\ M",` +
	`"total":12.50,"lines":[{"sku":"a","n":2},{"sku":"b"}],"paid":false,"note":null,"large":9007199254740993,"a/b~c":"odd"}}`

func stored(t testing.TB, text string) event.Event {
	t.Helper()
	e, err := event.Decode([]byte(text))
	require.NoError(t, err)
	return e
}

func paths() map[string]string {
	return map[string]string{
		"id": "/data/id", "who": "/data/who", "total": "/data/total", "line": "/data/lines/1", "lines": "/data/lines", "paid": "/data/paid",
		"note": "/data/note", "none": "/data/none", "all": "", "odd": "/data/a~1b~0c", "large": "/data/large", "type": "/type", "past": "/data/lines/2",
	}
}

func TestTemplate(t *testing.T) {
	for _, test := range []struct{ name, text, contentType, want string }{
		{"JSON as it is", `{"order": {id}, "who": {who}}`, "", `{"order": 1042, "who": "J\u00fcrgen \"J\" \\ M"}`},
		{"text in a string", `{"text": "{who}: {id} {total} {paid}"}`, "", `{"text": "J\u00fcrgen \"J\" \\ M: 1042 12.50 false"}`},
		{"an object in a string", `"{line} {lines}"`, "", `"{\"sku\":\"b\"} [{\"sku\":\"a\",\"n\":2},{\"sku\":\"b\"}]"`},
		{"missing and null", `[{none}, "{none}", {note}, "{note}", {past}]`, "", `[null, "", null, "null", null]`},
		{"the whole", `{all}`, "", order},
		{"odd names", `{odd}`, "", `"odd"`},
		{"large numbers", `{large}`, "", `9007199254740993`},
		{"braces", `{"a":{"b":{id}}, "c": "{{id}} {x} {", "d": {}}`, "", `{"a":{"b":1042}, "c": "{id} {x} {", "d": {}}`},
		{"a quote in a string", `{"a": "\"{id}", "b": {id}}`, "", `{"a": "\"1042", "b": 1042}`},
		{"other JSON types", `{"a": {who}}`, "application/vnd.shop+json; charset=utf-8", `{"a": "J\u00fcrgen \"J\" \\ M"}`},
		{"text", `Order {id} of "{who}": {lines}, {none}.`, "text/plain", `Order 1042 of "Jürgen "J" \ M": [{"sku":"a","n":2},{"sku":"b"}], .`},
		{"a backslash in text", `"C:\{id}\u{id}"`, "text/plain", `"C:\1042\u1042"`},
		{"nothing to fill in", `"x"`, "", `"x"`},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := paths()
			if strings.Contains(test.text, "{x}") {
				test.text = strings.ReplaceAll(test.text, "{x}", "{{x}}")
			}
			run, err := template.Compile(&model.Transform{Paths: p, Template: test.text, ContentType: test.contentType})
			require.NoError(t, err)
			body, contentType, err := run(stored(t, order))
			require.NoError(t, err)
			assert.Equal(t, test.want, string(body))
			want := test.contentType
			if want == "" {
				want = "application/json"
			}
			assert.Equal(t, want, contentType)
		})
	}
}

func TestFaultsSayWhere(t *testing.T) {
	for _, test := range []struct {
		name    string
		given   model.Transform
		pointer string
		problem string
	}{
		{"nothing", model.Transform{}, "", "exactly one of template and cel"},
		{"both", model.Transform{Template: "1", CEL: "1"}, "", "exactly one of template and cel"},
		{"unknown path", model.Transform{Template: "{\"a\":\n  {b}}"}, "/template", "line 2, column 3: {b} is not in paths"},
		{"unknown path behind letters of two bytes", model.Transform{Template: "\"éé {b}\""}, "/template", "line 1, column 5: {b} is not in paths"},
		{"not JSON", model.Transform{Template: "{\"a\": {id},\n \"b\": x}", Paths: map[string]string{"id": "/id"}}, "/template", "line 2, column 7: is not JSON"},
		{"not JSON behind a place in a string", model.Transform{Template: "{\"a\": \"{id}\" x}", Paths: map[string]string{"id": "/id"}}, "/template", "line 1, column 14: is not JSON"},
		{"cut off", model.Transform{Template: `{"a": {id}`, Paths: map[string]string{"id": "/id"}}, "/template", "ends too early"},
		{"two values", model.Transform{Template: "{id}\n {id}", Paths: map[string]string{"id": "/id"}}, "/template", "line 2, column 2: must be one JSON value"},
		{"a place beside a number", model.Transform{Template: "1{id}", Paths: map[string]string{"id": "/id"}}, "/template", "JSON"},
		{"half an escape", model.Transform{Template: `"\u00{id}"`, Paths: map[string]string{"id": "/id"}}, "/template", "JSON"},
		{"a place in an escape", model.Transform{Template: `"\u00{id}41"`, Paths: map[string]string{"id": "/id"}}, "/template", "line 1, column 6: is not JSON"},
		{"not a pointer", model.Transform{Template: "1", Paths: map[string]string{"id": "data.id"}}, "/paths/id", "begins with /"},
		{"not a name", model.Transform{Template: "1", Paths: map[string]string{"a/b": "/id"}}, "/paths/a~1b", "must have a name of letters"},
		{"content type", model.Transform{Template: "1", ContentType: "json"}, "/content_type", "must be a media type"},
		{"content type with a line", model.Transform{Template: "1", ContentType: "text/plain\r\nx: y"}, "/content_type", "must be a media type"},
		{"paths with cel", model.Transform{CEL: "1", Paths: map[string]string{"id": "/id"}}, "/paths", "is for template"},
		{"cel does not compile", model.Transform{CEL: "event.data +"}, "/cel", "column 13: it ends too early"},
		{"cel knows event only", model.Transform{CEL: "data.id"}, "/cel", "column 1: there is no data; the variables are event"},
		{"cel that is no text", model.Transform{CEL: "1 + 1", ContentType: "text/plain"}, "/cel", "must be a string or bytes"},
		{"cel that amplifies", model.Transform{CEL: `event.data.a.replace("a", event.data.b)`}, "/cel", "constant text"},
		{"template too long", model.Transform{Template: `"` + strings.Repeat("a", 64<<10) + `"`}, "/template", "at most 65536 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := template.Compile(&test.given)
			var fault *template.Fault
			require.ErrorAs(t, err, &fault)
			assert.Equal(t, test.pointer, fault.Pointer)
			assert.Contains(t, fault.Problem, test.problem)
		})
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := template.Compile(&model.Transform{Paths: map[string]string{"a": "x", "b": "y"}, ContentType: "z", Template: "1"})
	for _, pointer := range []string{"/content_type", "/paths/a", "/paths/b"} {
		assert.ErrorContains(t, err, pointer)
	}
}

func TestCEL(t *testing.T) {
	for _, test := range []struct{ name, expression, contentType, want string }{
		{"a map", `{"order": event.data.id, "lines": event.data.lines.map(l, l.sku), "big": event.data.large}`, "", `{"big":9007199254740993,"lines":["a","b"],"order":1042}`},
		{"the whole event's data", `event.data.lines`, "", `[{"n":2,"sku":"a"},{"sku":"b"}]`},
		{"numbers", `[1, 1u, 2.5, -0.0, 1e21]`, "", `[1,1,2.5,-0,1e+21]`},
		{"a string", `event.data.who + " <&>"`, "", `"Jürgen \"J\" \\ M <&>"`},
		{"times and bytes", `[timestamp("2026-11-22T10:00:00.5Z"), duration("1500ms"), b"\xff", null, true]`, "", `["2026-11-22T10:00:00.5Z","1.5s","/w==",null,true]`},
		{"keys that are no text", `{1: "a", 2: "b"}`, "", `{"1":"a","2":"b"}`},
		{"has", `has(event.data.none) ? event.data.none : "-"`, "", `"-"`},
		{"text", `event.type + " " + string(event.data.id)`, "text/plain", `order.placed 1042`},
		{"bytes", `b"\x00\xff"`, "application/octet-stream", "\x00\xff"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run, err := template.Compile(&model.Transform{CEL: test.expression, ContentType: test.contentType})
			require.NoError(t, err)
			body, _, err := run(stored(t, order))
			require.NoError(t, err)
			assert.Equal(t, test.want, string(body))
		})
	}
}

// TestEscapesDoNotCount: what counts is the size of the result, not of the event's escapes.
func TestEscapesDoNotCount(t *testing.T) {
	escaped := stored(t, `{"specversion":"1.0","id":"7","source":"/s","type":"t","data":{"x":"`+strings.Repeat(`\u0061`, 30_000)+`"}}`)
	run, err := template.Compile(&model.Transform{
		Paths: map[string]string{"x": "/data/x"}, Template: strings.Repeat("{x}", 30), ContentType: "text/plain",
	})
	require.NoError(t, err)
	body, _, err := run(escaped)
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("a", 900_000), string(body))
}

// TestWhatAnEventMustNotCause is about what is refused when an event comes.
func TestWhatAnEventMustNotCause(t *testing.T) {
	large := stored(t, `{"specversion":"1.0","id":"7","source":"/s","type":"t","data":{"x":"`+strings.Repeat("a", 200<<10)+`","n":[`+strings.Repeat("1,", 2000)+`1]}}`)
	repeated := strings.TrimSuffix(strings.Repeat("{x},", 10), ",")
	for _, test := range []struct {
		name  string
		given model.Transform
		want  string
	}{
		{"too large, template", model.Transform{Paths: map[string]string{"x": "/data/x"}, Template: "[" + repeated + "]"}, "more than 1048576 bytes"},
		{"too large, CEL", model.Transform{CEL: `event.data.n.map(i, event.data.x)`}, "more than 1048576 bytes"},
		{"too large, text", model.Transform{CEL: `event.data.x + event.data.x + event.data.x + event.data.x + event.data.x + event.data.x`, ContentType: "text/plain"}, "1048576 bytes"},
		{"too costly", model.Transform{CEL: `event.data.n.all(a, event.data.n.all(b, event.data.n.all(c, a == b || b == c || a == c)))`}, "cost limit"},
		{"no such key", model.Transform{CEL: `event.data.none`}, "no such key"},
		{"not in JSON", model.Transform{CEL: `1.0 / 0.0`}, "a number that is not in JSON"},
		{"a type", model.Transform{CEL: `type(event)`}, "which is not in JSON"},
		{"no text", model.Transform{CEL: `event.data.n`, ContentType: "text/plain"}, "must be a string or bytes"},
		{"a key twice", model.Transform{CEL: `{1: "a", "1": "b"}`}, "two keys"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run, err := template.Compile(&test.given)
			require.NoError(t, err)
			body, _, err := run(large)
			require.ErrorContains(t, err, test.want)
			assert.NotContains(t, err.Error(), "\n")
			assert.Less(t, len(err.Error()), 500)
			assert.Nil(t, body)
		})
	}
}

// TestEventsOfManyValuesTakeLittle: decoded for CEL, an event takes thirty times its size.
func TestEventsOfManyValuesTakeLittle(t *testing.T) {
	run, err := template.Compile(&model.Transform{CEL: `event.type`})
	require.NoError(t, err)
	large := stored(t, `{"specversion":"1.0","id":"7","source":"/s","type":"t","data":[`+strings.Repeat(`{"a":1},`, 500_000)+`1]}`)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, _, err = run(large)
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "the event has 1000")
	require.ErrorContains(t, err, "cel takes 100000 at most")
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20))
}

// FuzzTemplate checks that an accepted template makes JSON of any event, and that faults do not
// depend on luck.
func FuzzTemplate(f *testing.F) {
	for _, seed := range []string{`{"a": {x}, "b": "{y}"}`, `{{x}}`, `"\{x}"`, `"\u00{x}"`, `"\u00{x}41"`, `"\u{y}1{y}2{y}3{y}4"`, `[{x},{y}]`, `{"{x}":"\"{y}"}`, "{x", "\"\\"} {
		f.Add(seed, `{"k":"v\"\\\n"}`, "text/plain")
	}
	f.Fuzz(func(t *testing.T, text, data, contentType string) {
		given := &model.Transform{Paths: map[string]string{"x": "/data", "y": "/data/k", "z": "/data/0"}, Template: text}
		if !json.Valid([]byte(data)) || !utf8.ValidString(data) {
			data = "null"
		}
		e, err := event.Decode([]byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t","data":` + strings.TrimSpace(data) + `}`))
		require.NoError(t, err)
		if run, err := template.Compile(given); err == nil {
			body, _, err := run(e)
			if err != nil {
				require.ErrorContains(t, err, "more than")
				return
			}
			require.True(t, json.Valid(body), "%q", body)
		} else {
			var fault *template.Fault
			require.ErrorAs(t, err, &fault)
		}
		given.ContentType = contentType
		if run, err := template.Compile(given); err == nil {
			_, _, _ = run(e)
		}
	})
}

func BenchmarkTemplate(b *testing.B) {
	run, err := template.Compile(&model.Transform{Paths: paths(), Template: `{"order": {id}, "text": "{who} {total}", "lines": {lines}}`})
	require.NoError(b, err)
	e := stored(b, order)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := run(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkCEL(b *testing.B) {
	run, err := template.Compile(&model.Transform{CEL: `{"order": event.data.id, "lines": event.data.lines.map(l, l.sku)}`})
	require.NoError(b, err)
	e := stored(b, order)
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := run(e); err != nil {
			b.Fatal(err)
		}
	}
}
