package event_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

const head = `"specversion":"1.0","id":"A1","source":"/s","type":"t"`

func structured(body string) (event.Event, error) {
	var p event.Parser
	return p.Structured([]byte(body), event.Options{MaxBytes: 1 << 20})
}

// same compares byte by byte: what is stored has one form.
func same(t *testing.T, want string, e event.Event) {
	t.Helper()
	assert.Equal(t, want, string(e.JSON))
}

func reasonOf(t *testing.T, err error) event.Reason {
	t.Helper()
	fault := (*event.Error)(nil)
	require.ErrorAs(t, err, &fault)
	return fault.Reason
}

// TestStructured: what comes in and what is stored.
func TestStructured(t *testing.T) {
	for _, test := range []struct{ in, want string }{
		{`{` + head + `}`, `{` + head + `}`},
		{" {\r\n\t\"type\" : \"t\", \"id\":\"A1\" ,\"data\": { \"a\" : [ 1 , \" x \" ] }, \"source\":\"/s\",\"specversion\":\"1.0\" } ",
			`{` + head + `,"data":{"a":[1," x "]}}`},
		{`{"data":null,` + head + `}`, `{` + head + `,"data":null}`},
		{`{` + head + `,"data_base64":null,"data":1}`, `{` + head + `,"data":1}`},
		{`{` + head + `,"data_base64":"AAEC"}`, `{` + head + `,"data_base64":"AAEC"}`},
		{`{` + head + `,"data_base64":"AA\u0045C"}`, `{` + head + `,"data_base64":"AAEC"}`},
		{`{` + head + `,"subject":null,"zebra":true,"ant":-5,"time":"2026-11-22T17:00:00.5+01:00"}`,
			`{` + head + `,"time":"2026-11-22T17:00:00.5+01:00","zebra":true,"ant":-5}`},
		{`{` + head + `,"partitionkey":"a\u00e9\"\/","dataschema":"https://x/y#z","datacontenttype":"text/plain","data":"\ud83d\ude00 \u0000"}`,
			`{` + head + `,"datacontenttype":"text/plain","dataschema":"https://x/y#z","partitionkey":"aé\"/","data":"\ud83d\ude00 \u0000"}`},
		{`{"\u0069d":"A1","source":"/s","type":"t","specversion":"1.0"}`, `{` + head + `}`},
		{`{` + head + `,"data":1e400}`, `{` + head + `,"data":1e400}`},
		{`{` + head + `,"time":"2026-11-22t17:00:00z"}`, `{` + head + `,"time":"2026-11-22t17:00:00z"}`},
	} {
		e, err := structured(test.in)
		require.NoError(t, err, test.in)
		assert.Equal(t, test.want, string(e.JSON))
		again, err := event.Decode(e.JSON)
		require.NoError(t, err, test.want)
		assert.Equal(t, e, again, test.in)
	}
	e, err := structured(`{` + head + `,"partitionkey":"a\u00e9\"\/","subject":"x","time":"2026-11-22T17:00:00.5+01:00","data":{}}`)
	require.NoError(t, err)
	assert.Equal(t, []string{"A1", "/s", "t", "x", `aé"/`, ""}, []string{e.ID, e.Source, e.Type, e.Subject, e.PartitionKey, e.DataContentType})
	assert.True(t, e.Time.Equal(time.Date(2026, 11, 22, 16, 0, 0, 5e8, time.UTC)))
	data, kind := e.Data()
	assert.Equal(t, `{}`, string(data))
	assert.Equal(t, event.JSONData, kind)
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

// TestWhatIsNoEvent: each with its reason.
func TestWhatIsNoEvent(t *testing.T) {
	with := func(more string) string { return `{` + head + `,` + more + `}` }
	many := make([]string, event.MaxAttributes)
	for i := range many {
		many[i] = fmt.Sprintf(`"x%d":1`, i)
	}
	for reason, bodies := range map[event.Reason][]string{
		event.NotJSON: {
			``, ` `, `{`, `{"`, `{"a`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{a:1}`, `{'a':1}`, `{"a" 1}`, `{"a":1 "b":2}`, `{"a":tru}`, `{"a":nul`, `x`,
			with(`"data":01`), with(`"data":.5`), with(`"data":5.`), with(`"data":1e`), with(`"data":-`), with(`"data":+1`), with(`"data":NaN`), with(`"data":[1,]`),
			with(`"data":[1`), with(`"data":{"a":1]`), with(`"data":"\q"`), with(`"data":"\u12g4"`), with("\"data\":\"a\nb\""), with("\"data\":\"a\x00b\""), `{` + head + `}x`, `{` + head + `}{}`,
			"\ufeff{" + head + "}", with("\"data\":1\v"),
		},
		event.InvalidUTF8:  {with("\"data\":\"\xff\""), with("\"data\":{\"\xc0\xa0\":1}"), with(`"data":"\ud800"`), with(`"data":"\udc00\ud800"`), with(`"data":{"\ud800x":1}`), with("\"data\":\"\xed\xa0\x80\"")},
		event.DuplicateKey: {with(`"id":"A2"`), with(`"\u0069d":"A2"`), with(`"data":{"a":{"b":1,"b":1}}`), with(`"data":[{"\u0062":1,"b":1}]`), with(`"data":1,"data":1`)},
		event.TooDeep:      {with(`"data":` + nested(event.MaxDepth)), with(`"data":` + nested(10_000)), nested(10_000), strings.Repeat(`{"a":`, 10_000)},
		event.TooMany:      {with(`"data":[` + strings.Repeat("1,", event.MaxValues) + `1]`)},
		event.NotAnObject:  {`[]`, `1`, `"x"`, `null`, `[{` + head + `}]`},
		event.BadNumber:    {with(`"data":1e1000000000`), with(`"data":[1E+0000000001]`)},
		event.Missing: {
			`{}`, `{"specversion":"1.0","id":"A1","source":"/s"}`, `{"specversion":"1.0","id":"A1","type":"t"}`, `{"specversion":"1.0","source":"/s","type":"t"}`,
			`{"id":"A1","source":"/s","type":"t"}`, `{"specversion":"1.0","id":null,"source":"/s","type":"t"}`,
		},
		event.BadAttribute: {
			`{"specversion":"0.3","id":"A1","source":"/s","type":"t"}`, `{"specversion":1.0,"id":"A1","source":"/s","type":"t"}`, `{"specversion":"1.0","id":1,"source":"/s","type":"t"}`,
			`{"specversion":"1.0","id":"","source":"/s","type":"t"}`, `{"specversion":"1.0","id":"1","source":"/a b","type":"t"}`, `{"specversion":"1.0","id":"1","source":"/%zz","type":"t"}`,
			`{"specversion":"1.0","id":"1","source":"/é","type":"t"}`, `{"specversion":"1.0","id":"1","source":{},"type":"t"}`, `{"specversion":"1.0","id":"1","source":"/s","type":["t"]}`,
			with(`"Upper":"x"`), with(`"under_score":"x"`), with(`"":"x"`), with(`"` + strings.Repeat("x", event.MaxNameBytes+1) + `":"x"`), with(`"é":1`),
			with(`"x":{}`), with(`"x":[]`), with(`"x":1.5`), with(`"x":1e3`), with(`"x":2147483648`), with(`"x":-2147483649`), with(`"x":99999999999999999999`),
			with(`"x":"\u0001"`), with("\"x\":\"\x7f\""), with(`"x":"\u0085"`), with(`"x":"\ufdd0"`), with(`"x":"\ufffe"`), with(`"x":"\ud83f\udfff"`),
			with(`"time":"yesterday"`), with(`"time":"2026-11-22 17:00:00Z"`), with(`"time":"2026-11-22T17:00:00"`), with(`"time":1`), with(`"time":""`),
			with(`"datacontenttype":"json"`), with(`"datacontenttype":""`), with(`"dataschema":"/relative"`), with(`"dataschema":""`), with(`"subject":""`), with(`"partitionkey":""`),
			with(`"partitionkey":5`), with(strings.Join(many, ",")), with(`"x":"` + strings.Repeat("x", event.MaxTextBytes+1) + `"`),
		},
		event.BadData: {
			with(`"data":1,"data_base64":"AA=="`), with(`"data_base64":1`), with(`"data_base64":"AA"`), with(`"data_base64":"A==="`), with(`"data_base64":"AA==AA=="`),
			with(`"data_base64":"AB=="`), with(`"data_base64":"\nAAA"`), with(`"data_base64":"` + strings.Repeat("AAAA", 63) + `AA==AAAA"`),
			with(`"datacontenttype":"text/plain","data":{}`), with(`"data":1,"datacontenttype":"image/png"`),
		},
	} {
		for _, body := range bodies {
			e, err := structured(body)
			require.Error(t, err, "%.80q made %s", body, e.JSON)
			assert.Equal(t, reason, reasonOf(t, err), "%.80q: %v", body, err)
			assert.Less(t, len(err.Error()), 300)
		}
	}
	var p event.Parser
	_, err := p.Structured([]byte(with(`"data":"`+strings.Repeat("x", 100)+`"`)), event.Options{MaxBytes: 100})
	assert.Equal(t, event.TooLarge, reasonOf(t, err))
}

// TestAnErrorSaysWhere: the offset is in the body.
func TestAnErrorSaysWhere(t *testing.T) {
	for body, want := range map[string]string{
		`{"id":1,"id":2}`:                      `offset 8: the key "id" occurs twice`,
		`{"a":[1,{"b":2,"c":3,"b":4}]}`:        `offset 21: the key "b" occurs twice`,
		`{"specversion":"1.0","id":7}`:         `offset 26: id: must be a text`,
		`{"x":tru}`:                            `offset 8: not JSON: unexpected "}"`,
		`{"specversion":"1.0","id":"x"`:        `offset 29: the JSON ends too early`,
		`{"specversion":"1.0","source":"a b"}`: `offset 30: source: must be a URI-reference (RFC 3986), got "a b"`,
	} {
		_, err := structured(body)
		assert.EqualError(t, err, want)
	}
}

func TestBatch(t *testing.T) {
	var p event.Parser
	read := func(body string, most int) ([]event.Entry, error) {
		return p.Batch([]byte(body), most, event.Options{MaxBytes: 1000})
	}
	entries, err := read(` [ {`+head+`,"data" : [ 1 ]} , {"id":"A2"}, 5, {`+head+`,"data":{"a":1,"a":2}}, {`+head+`,"data":"`+strings.Repeat("x", 1000)+`"}, {`+head+`} ] `, 10)
	require.NoError(t, err)
	require.Len(t, entries, 6)
	require.NoError(t, entries[0].Err)
	same(t, `{`+head+`,"data":[1]}`, entries[0].Event)
	for i, want := range map[int]event.Reason{1: event.Missing, 2: event.NotAnObject, 3: event.DuplicateKey, 4: event.TooLarge} {
		assert.Equal(t, want, reasonOf(t, entries[i].Err), "entry %d", i)
	}
	assert.NoError(t, entries[5].Err, "a fault ends with its entry")
	entries, err = read(` [ ] `, 10)
	require.NoError(t, err)
	assert.Empty(t, entries)
	for body, want := range map[string]event.Reason{
		``: event.NotJSON, `{}`: event.NotAnObject, `5`: event.NotAnObject, `[`: event.NotJSON, `[1`: event.NotJSON, `[1,]`: event.NotJSON, `[1]]`: event.NotJSON, `[]x`: event.NotJSON,
		`[1,2,3]`: event.TooManyInOne, `[1,{"a":"\x"}]`: event.NotJSON, "[1,\"\xff\"]": event.InvalidUTF8, `[1,` + nested(200) + `]`: event.TooDeep,
	} {
		_, err := read(body, 2)
		assert.Equal(t, want, reasonOf(t, err), "%.40q", body)
	}
}

// TestMemoryIsReservedBeforeItIsTaken: and its error ends the reading.
func TestMemoryIsReservedBeforeItIsTaken(t *testing.T) {
	full := errors.New("full")
	var p event.Parser
	total := 0
	o := event.Options{Reserve: func(n int) error {
		if total += n; total > 3000 {
			return full
		}
		return nil
	}}
	e, err := p.Structured([]byte(`{`+head+`,"data":"`+strings.Repeat("x", 500)+`"}`), o)
	require.NoError(t, err)
	assert.Equal(t, 2*len(e.JSON), total)
	assert.Equal(t, len(e.JSON), cap(e.JSON), "no more than was reserved")
	_, err = p.Batch([]byte(`[`+strings.Repeat(`1,`, 100)+`1]`), 1000, o)
	assert.ErrorIs(t, err, full)
	_, err = p.Structured([]byte(`{`+head+`}`), o)
	assert.ErrorIs(t, err, full)
}

func header(pairs ...string) http.Header {
	h := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"A1"}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}}
	for pair := range slices.Chunk(pairs, 2) {
		h.Add(pair[0], pair[1])
	}
	return h
}

func TestBinary(t *testing.T) {
	var p event.Parser
	for _, test := range []struct {
		headers    []string
		body, want string
	}{
		{nil, ``, `{` + head + `}`},
		{nil, `{"a" : 1}`, `{` + head + `,"data":{"a":1}}`},
		{[]string{"Content-Type", "application/json; charset=UTF-8"}, ` [ 1 ] `, `{` + head + `,"datacontenttype":"application/json; charset=UTF-8","data":[1]}`},
		{[]string{"Content-Type", "application/vnd.x+json"}, `1`, `{` + head + `,"datacontenttype":"application/vnd.x+json","data":1}`},
		{[]string{"Content-Type", "text/plain"}, "a\n\"é\"\x01", `{` + head + `,"datacontenttype":"text/plain","data":"a\n\"é\"\u0001"}`},
		{[]string{"Content-Type", "text/plain"}, "\xff", `{` + head + `,"datacontenttype":"text/plain","data_base64":"/w=="}`},
		{[]string{"Content-Type", "text/plain; charset=iso-8859-1"}, "a", `{` + head + `,"datacontenttype":"text/plain; charset=iso-8859-1","data_base64":"YQ=="}`},
		{[]string{"Content-Type", "application/xml"}, "<a/>", `{` + head + `,"datacontenttype":"application/xml","data":"<a/>"}`},
		{[]string{"Content-Type", "application/octet-stream"}, "\x00\x01\x02", `{` + head + `,"datacontenttype":"application/octet-stream","data_base64":"AAEC"}`},
		{[]string{"Content-Type", "image/png"}, "", `{` + head + `,"datacontenttype":"image/png"}`},
		{[]string{"Ce-Zebra", "5", "Ce-Ant", "true", "Ce-Subject", "Euro%20%E2%82%ac%20%F0%9F%98%80"}, ``, `{` + head + `,"subject":"Euro € 😀","ant":"true","zebra":"5"}`},
		{[]string{"Ce-Subject", `"a \"b\" %25 \\"`, "Ce-Partitionkey", "%41"}, ``, `{` + head + `,"subject":"a \"b\" % \\","partitionkey":"A"}`},
	} {
		h := header(test.headers...)
		require.True(t, event.IsBinary(h))
		e, err := p.Binary(h, []byte(test.body), event.Options{})
		require.NoError(t, err, test.want)
		assert.Equal(t, test.want, string(e.JSON))
		assert.Equal(t, len(e.JSON), cap(e.JSON))

		out := http.Header{}
		body, err := e.WriteBinary(out)
		require.NoError(t, err)
		back, err := p.Binary(out, body, event.Options{})
		require.NoError(t, err, test.want)
		if e.DataContentType == "" && len(test.body) > 0 {
			assert.Equal(t, "application/json", back.DataContentType, "what is implied is said")
			continue
		}
		assert.Equal(t, test.want, string(back.JSON), "the way there and back")
	}
	for reason, all := range map[event.Reason][][]string{
		event.BadHeader: {
			{"Ce-Datacontenttype", "text/plain"}, {"Ce-Data", "x"}, {"Ce-Id", "second"}, {"Content-Type", "a/b", "Content-Type", "a/b"},
		},
		event.InvalidUTF8:  {{"Content-Type", "a/\xff"}},
		event.BadAttribute: {{"Ce-Foo-Bar", "x"}, {"Ce-Time", "x"}, {"Ce-Subject", ""}, {"Ce-Subject", "\x85"}, {"Content-Type", "x"}, {"Ce-", "x"}},
	} {
		for _, pairs := range all {
			_, err := p.Binary(header(pairs...), nil, event.Options{})
			require.Error(t, err, pairs)
			assert.Equal(t, reason, reasonOf(t, err), "%q: %v", pairs, err)
		}
	}
	for body, want := range map[string]event.Reason{`{`: event.NotJSON, `{"a":1,"a":2}`: event.DuplicateKey, `1 2`: event.NotJSON, "\"\xff\"": event.InvalidUTF8, nested(500): event.TooDeep} {
		_, err := p.Binary(header("Content-Type", "application/json"), []byte(body), event.Options{})
		assert.Equal(t, want, reasonOf(t, err), "%.40q", body)
	}
	_, err := p.Binary(header("Content-Type", "application/json; charset=utf-16"), []byte(`1`), event.Options{})
	assert.Equal(t, event.BadData, reasonOf(t, err))
	_, err = p.Binary(header(), []byte(nested(event.MaxDepth)), event.Options{})
	assert.Equal(t, event.TooDeep, reasonOf(t, err), "the event's own object counts")
	e, err := p.Binary(header(), []byte(nested(event.MaxDepth-1)), event.Options{})
	require.NoError(t, err)
	_, err = structured(string(e.JSON))
	require.NoError(t, err, "an accepted event is within the bounds of events")
	_, err = p.Binary(http.Header{"Ce-Id": {"1"}}, nil, event.Options{})
	assert.Equal(t, event.Missing, reasonOf(t, err))
	assert.False(t, event.IsBinary(http.Header{"Ce-Other": {"1"}}))
}

// TestHeadersThatWereNotEncoded: SDKs write values as they are. A value that is not valid when
// decoded is kept, whatever the reason.
func TestHeadersThatWereNotEncoded(t *testing.T) {
	var p event.Parser
	for _, test := range []struct{ name, value, want string }{
		{"source", "/p?q=a%20b", "/p?q=a%20b"},
		{"source", "/p?q=100%25", "/p?q=100%25"},
		{"source", "/p?q=%C3%BC", "/p?q=%C3%BC"},
		{"source", "/p?q=a%2520b", "/p?q=a%20b"}, // encoded
		{"source", "/p/%41", "/p/A"},             // valid both ways: decoded, as the binding says
		{"dataschema", "https://x/a%20b", "https://x/a%20b"},
		{"dataschema", "https://x/a%2520b", "https://x/a%20b"},
		{"time", "2026-11-22T17:00:00%2B01:00", "2026-11-22T17:00:00+01:00"},
		{"subject", "%", "%"},
		{"subject", "100%", "100%"},
		{"subject", "%4", "%4"},
		{"subject", "%zz %41", "%zz %41"},
		{"subject", "%FF", "%FF"},
		{"subject", "%C0%A0", "%C0%A0"},
		{"subject", "%00", "%00"},
		{"subject", "%0A", "%0A"},
		{"subject", "100%25", "100%"},
		{"extension", "%EF%BF%BE", "%EF%BF%BE"},
		{"extension", "%7F", "%7F"},
		{"subject", `"a`, `"a`},
		{"subject", `a"`, `a"`},
		{"subject", `"`, `"`},
		{"subject", `"a" and "b"`, `"a" and "b"`},
		{"subject", `"a\"`, `"a\"`},
		{"subject", `"a"`, "a"},
		{"subject", `a \ "b"`, `a \ "b"`},
		{"subject", "café €", "café €"},
		{"subject", "caf\xe9", "café"}, // Latin-1
		{"subject", "caf\xe9 %C3%A9", "café é"},
	} {
		h := header()
		h["Ce-"+strings.ToUpper(test.name[:1])+test.name[1:]] = []string{test.value}
		e, err := p.Binary(h, nil, event.Options{})
		require.NoError(t, err, "%s: %q", test.name, test.value)
		var got map[string]string
		require.NoError(t, json.Unmarshal(e.JSON, &got))
		assert.Equal(t, test.want, got[test.name], "%s: %q", test.name, test.value)
	}
	_, err := p.Binary(http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {"A1"}, "Ce-Source": {"/a b%20"}, "Ce-Type": {"t"}}, nil, event.Options{})
	require.EqualError(t, err, `source: must be a URI-reference (RFC 3986), got "/a b%20"`)
}

func TestPlain(t *testing.T) {
	expr := func(text string) event.Expr {
		e, err := event.ParseExpr(text)
		require.NoError(t, err)
		return e
	}
	m := &event.Mapping{ID: expr("/meta/id"), Source: expr("=/shop"), Type: expr("/kind"), Subject: expr("/who/0"), Time: expr("/at"), PartitionKey: expr("/a~1b")}
	var p event.Parser
	e, err := p.Plain([]byte(` {"kind" : "order", "meta":{"id": 7}, "who":["anna",2], "at":"2026-11-22T17:00:00Z", "a/b":true} `), m, event.Options{})
	require.NoError(t, err)
	same(t, `{"specversion":"1.0","id":"7","source":"/shop","type":"order","subject":"anna","time":"2026-11-22T17:00:00Z","datacontenttype":"application/json",`+
		`"partitionkey":"true","data":{"kind":"order","meta":{"id":7},"who":["anna",2],"at":"2026-11-22T17:00:00Z","a/b":true}}`, e)
	began := time.Now()
	e, err = p.Plain([]byte(`{"kind":"order","at":null,"who":[]}`), m, event.Options{})
	require.NoError(t, err)
	assert.Len(t, e.ID, 36)
	assert.WithinDuration(t, began, e.Time, time.Minute)
	assert.Empty(t, e.Subject+e.PartitionKey)
	for body, want := range map[string]event.Reason{
		`[]`: event.NotAnObject, `{`: event.NotJSON, `{"kind":1,"kind":2}`: event.DuplicateKey, `{}`: event.BadMapping, `{"kind":""}`: event.BadMapping, `{"kind":{}}`: event.BadMapping,
		`{"kind":"x","at":"noon"}`: event.BadMapping, `{"kind":"\u0000"}`: event.BadMapping,
	} {
		_, err := p.Plain([]byte(body), m, event.Options{})
		assert.Equal(t, want, reasonOf(t, err), body)
	}
	for _, bad := range []string{"x", "/~", "/~2", "/a~"} {
		_, err := event.ParseExpr(bad)
		assert.Error(t, err, bad)
	}
}

func TestPointer(t *testing.T) {
	const doc = `{"a":{"b":[10,{"c":"x\"y"},[[]]],"":1}, "m~n":2 ,"o/p":3,"\u0071":4,"n":null,"t":"]}"}`
	for pointer, want := range map[string]string{
		"": doc, "/a/b/0": "10", "/a/b/1/c": `"x\"y"`, "/a/b/2/0": "[]", "/a/": "1", "/m~0n": "2", "/o~1p": "3", "/q": "4", "/n": "null", "/t": `"]}"`,
		"/a/b/3": "", "/a/b/01": "", "/a/b/-": "", "/z": "", "/n/x": "", "/a/b/1/c/0": "",
	} {
		p, err := event.ParsePointer(pointer)
		require.NoError(t, err)
		got, found := p.Find([]byte(doc))
		assert.Equal(t, want != "", found, pointer)
		assert.Equal(t, want, string(got), pointer)
	}
	for _, broken := range []string{``, `{`, `{"a"`, `{"a":`, `[1`, `{"a":"x`, `]`, `{"a"]`} {
		p, err := event.ParsePointer("/a")
		require.NoError(t, err)
		_, found := p.Find([]byte(broken))
		assert.False(t, found, broken)
	}
}

func TestTrace(t *testing.T) {
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	assert.Equal(t, event.Trace{Parent: parent, State: "a=1,b=2"}, event.TraceOf(http.Header{"Traceparent": {parent}, "Tracestate": {"a=1", "b=2"}}))
	assert.Equal(t, event.Trace{Parent: parent}, event.TraceOf(http.Header{"Traceparent": {parent}, "Tracestate": {strings.Repeat("x", 513)}}))
	assert.Equal(t, "01-"+parent[3:]+"-x", event.TraceOf(http.Header{"Traceparent": {"01-" + parent[3:] + "-x"}}).Parent, "a later version")
	for _, bad := range []string{"", "x", parent + "-x", parent[:54], "ff" + parent[2:], strings.Replace(parent, "0af7651916cd43dd8448eb211c80319c", strings.Repeat("0", 32), 1),
		strings.Replace(parent, "b7ad6b7169203331", strings.Repeat("0", 16), 1), strings.ToUpper(parent), strings.Replace(parent, "-", "_", 1)} {
		assert.Zero(t, event.TraceOf(http.Header{"Traceparent": {bad}}), bad)
	}
	assert.Zero(t, event.TraceOf(http.Header{"Traceparent": {parent, parent}}))

	var p event.Parser
	o := event.Options{Trace: event.Trace{Parent: parent, State: `a="1"`}}
	e, err := p.Structured([]byte(`{`+head+`,"data":1}`), o)
	require.NoError(t, err)
	same(t, `{`+head+`,"traceparent":"`+parent+`","tracestate":"a=\"1\"","data":1}`, e)
	for _, own := range []string{`{` + head + `,"traceparent":"own"}`, `{` + head + `,"tracestate":"own"}`} {
		e, err = p.Structured([]byte(own), o)
		require.NoError(t, err)
		assert.Equal(t, own, string(e.JSON), "the event's own stays")
	}
}

func TestDecodeRefusesWhatWasNotStored(t *testing.T) {
	for _, bad := range []string{``, `{}`, `{`, `[]`, `{"id"}`, `{"id":1,}`, `{"id":"1","source":"s"}`, `{"id":"x","source":"s","type":"t","time":"x"}`, `{"data":}`, `{"id":{},"source":"s","type":"t"}`,
		`{"id":"x","source":"s","type":"t"`, `{"id":"\`, "{\"id\":\"x\", }"} {
		_, err := event.Decode([]byte(bad))
		assert.Error(t, err, bad)
	}
}

func TestWebhookID(t *testing.T) {
	e, err := structured(`{` + head + `}`)
	require.NoError(t, err)
	sum := sha256.Sum256([]byte("/s\x00A1"))
	assert.Equal(t, "evt_"+base64.URLEncoding.EncodeToString(sum[:18]), e.WebhookID())
	other, err := structured(`{"specversion":"1.0","id":"A1","source":"/s","type":"other","data":5}`)
	require.NoError(t, err)
	assert.Equal(t, e.WebhookID(), other.WebhookID(), "source and id name an event")
	other, err = structured(`{"specversion":"1.0","id":"1","source":"/sA","type":"t"}`)
	require.NoError(t, err)
	assert.NotEqual(t, e.WebhookID(), other.WebhookID())
	shop, partner := e, e
	shop.Tenant, partner.Tenant = "shop", "partner"
	assert.NotEqual(t, shop.WebhookID(), partner.WebhookID(), "two tenants may use the same source and id")
	assert.NotEqual(t, shop.WebhookID(), e.WebhookID())
}

func TestWriteBatch(t *testing.T) {
	e, err := structured(`{` + head + `,"data":1}`)
	require.NoError(t, err)
	h := http.Header{}
	body := event.WriteBatch(h, []event.Event{e, e})
	assert.Equal(t, "application/cloudevents-batch+json", h.Get("Content-Type"))
	var p event.Parser
	entries, err := p.Batch(body, 2, event.Options{})
	require.NoError(t, err)
	require.Len(t, entries, 2)
	assert.Equal(t, e, entries[1].Event)
	assert.Equal(t, "[]", string(event.WriteBatch(h, nil)))
}

// TestEveryEventCanBeMatched: at the bounds, by rules that look everywhere.
func TestEveryEventCanBeMatched(t *testing.T) {
	pattern, err := eventpattern.Parse([]byte(`{"data":{"a":[{"exists":true}]}}`))
	require.NoError(t, err)
	x := eventpattern.NewIndex[int]()
	x.Set(1, pattern)
	for name, data := range map[string]string{
		"values":   `[` + strings.Repeat("1,", event.MaxValues-20) + `1]`,
		"depth":    nested(event.MaxDepth - 2),
		"exponent": `1e999999999`,
	} {
		e, err := structured(`{` + head + `,"data":{"a":[0,` + data + `]}}`)
		if name == "depth" {
			e, err = structured(`{` + head + `,"data":{"a":[0,` + nested(event.MaxDepth-3) + `]}}`)
		}
		require.NoError(t, err, name)
		got, err := x.Match(&eventpattern.Scratch{}, nil, e.JSON)
		require.NoError(t, err, name)
		assert.Equal(t, []int{1}, got, name)
	}
}

// TestAttributes: all of them, in the order of the specification.
func TestAttributes(t *testing.T) {
	e, err := structured(`{"z":5,` + head + `,"a":"\"","b":true,"data":{"id":"no"}}`)
	require.NoError(t, err)
	var got []string
	for name, text := range e.Attributes() {
		got = append(got, name+"="+text)
	}
	assert.Equal(t, []string{"specversion=1.0", "id=A1", "source=/s", "type=t", "z=5", `a="`, "b=true"}, got)
	var values map[string]any
	require.NoError(t, json.Unmarshal(e.JSON, &values))
	assert.Len(t, values, 8)
}

// TestEveryByteWhereverItStands: texts are looked at by eight bytes.
func TestEveryByteWhereverItStands(t *testing.T) {
	var p event.Parser
	for _, size := range []int{1, 7, 8, 9, 15, 16, 17} {
		for at := range size {
			for c := range 256 {
				text := []byte(strings.Repeat("x", size))
				text[at] = byte(c)
				body := []byte(`{` + head + `,"data":"` + string(text) + `"}`)
				_, err := p.Structured(body, event.Options{})
				require.Equal(t, json.Valid(body) && utf8.Valid(body), err == nil, "%q: %v", text, err)
			}
		}
	}
}

// TestDuplicateKeysAmongMany: in objects of few and of many keys, with escapes and without.
func TestDuplicateKeysAmongMany(t *testing.T) {
	for _, n := range []int{2, 11, 12, 13, 14, 1000} {
		for _, again := range []string{`k0`, `\u006b0`, fmt.Sprintf(`k%d`, n-2), fmt.Sprintf(`k%d`, (n-1)/2)} {
			var all []string
			for i := range n - 1 {
				all = append(all, fmt.Sprintf(`"k%d":{"k%d":1}`, i, i))
			}
			_, err := structured(`{` + head + `,"data":{` + strings.Join(all, ",") + `}}`)
			require.NoError(t, err)
			_, err = structured(`{` + head + `,"data":{` + strings.Join(all, ",") + `,"` + again + `":2}}`)
			assert.Equal(t, event.DuplicateKey, reasonOf(t, err), "%d keys, %s", n, again)
		}
	}
	_, err := structured(`{` + head + `,"data":{"\u0061":1,"\u0062":2,"c":3}}`)
	require.NoError(t, err)
	_, err = structured(`{` + head + `,"data":{"\u0061":1,"\u0061":2}}`)
	assert.Equal(t, event.DuplicateKey, reasonOf(t, err))
}
