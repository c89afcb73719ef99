package template_test

import (
	"encoding/json"
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
		{"nothing", model.Transform{}, "/template", "must be given"},
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
		{"template too long", model.Transform{Template: `"` + strings.Repeat("a", 64<<10) + `"`}, "/template", "at most 65536 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := template.Compile(&test.given)
			var invalid *model.Invalid
			require.ErrorAs(t, err, &invalid)
			assert.Equal(t, test.pointer, invalid.Faults[0].Pointer)
			assert.Contains(t, invalid.Faults[0].Problem, test.problem)
		})
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	_, err := template.Compile(&model.Transform{Paths: map[string]string{"a": "x", "b": "y"}, ContentType: "z", Template: "1"})
	for _, pointer := range []string{"/content_type", "/paths/a", "/paths/b"} {
		assert.ErrorContains(t, err, pointer)
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
			var invalid *model.Invalid
			require.ErrorAs(t, err, &invalid)
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
