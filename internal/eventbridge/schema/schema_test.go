package schema_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

func TestValidate(t *testing.T) {
	s, err := schema.Compile(json.RawMessage(`{"$defs":{"money":{"type":"number","minimum":0,"multipleOf":0.01}},
		"type":"object","required":["total"],"additionalProperties":false,
		"properties":{"total":{"$ref":"#/$defs/money"},"tags":{"type":"array","uniqueItems":true,"items":{"type":"string","pattern":"^[a-z]+$"}}}}`))
	require.NoError(t, err)
	for _, valid := range []string{`{"total":1}`, ` {"total" : 19.99, "tags":["a","b"]} `, `{"total":1e300}`} {
		assert.NoError(t, s.Validate([]byte(valid)), valid)
	}
	for data, want := range map[string]string{
		`{}`:                           "total",
		`[]`:                           "want object",
		`{"total":-1}`:                 "/total: ",
		`{"total":0.001}`:              "/total: ",
		`{"total":"1"}`:                "/total: ",
		`{"total":1,"x":1}`:            "x",
		`{"total":1,"tags":["a","a"]}`: "/tags: ",
		`{"total":1,"tags":["a","B"]}`: "/tags/1: ",
		`{"total":1e999999999}`:        "exponent",
		`{"total":1e-401}`:             "exponent",
		`{"total":` + strings.Repeat("1", 500) + `}`: "at most 400 characters",
		`{"total":1} x`: "not JSON",
		`{`:             "not JSON",
	} {
		err := s.Validate([]byte(data))
		wrong := (*schema.Error)(nil)
		require.ErrorAs(t, err, &wrong, data)
		assert.Contains(t, err.Error(), want, data)
		assert.Less(t, len(err.Error()), 500)
	}
	err = s.Validate([]byte(`{"total":1,"tags":["` + strings.Repeat("X", 1<<20) + `"]}`))
	assert.Less(t, len(err.Error()), 500, "values are not repeated whole")
}

// TestNothingIsLoaded: neither from the network nor from files.
func TestNothingIsLoaded(t *testing.T) {
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write([]byte(`true`))
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "schema.json")
	require.NoError(t, os.WriteFile(file, []byte(`true`), 0o600))
	for _, ref := range []string{server.URL, "file://" + file, file, "other.json", "//x/y"} {
		_, err := schema.Compile(json.RawMessage(`{"$ref":"` + ref + `"}`))
		assert.Error(t, err, ref)
	}
	_, err := schema.Compile(json.RawMessage(`{"$schema":"` + server.URL + `"}`))
	assert.Error(t, err)
	assert.Zero(t, asked.Load())
}

// TestSchemasThatAreNone: each says why.
func TestSchemasThatAreNone(t *testing.T) {
	for text, want := range map[string]string{
		`{`: "not JSON", `5`: "", `{"type":"number?"}`: "/type", `{"pattern":"("}`: "/pattern", `{"minimum":1e999999}`: "exponent", `{"$ref":"#/nowhere"}`: "",
		`{"title":"` + strings.Repeat("x", schema.MaxBytes) + `"}`: "at most",
		`{"$ref":"#"}`: "#/$defs/", `{"$ref":"#/properties/a","properties":{"a":true}}`: "#/$defs/", `{"$ref":"#/$defs/a%62","$defs":{"a%62":true}}`: "without %", `{"$dynamicRef":"#a"}`: "use $ref", `{"items":{"$id":"x"}}`: "at the top",
		`{"$defs":{"n":{"items":{"$ref":"#/$defs/n"}}},"$ref":"#/$defs/n"}`:                            "recursive",
		strings.Repeat(`{"not":`, schema.MaxDepth+1) + `true` + strings.Repeat(`}`, schema.MaxDepth+1): "nested",
		`{"enum":[1` + strings.Repeat(`,1`, schema.MaxKeywords) + `]}`:                                 "keywords", doubling(20): "keywords",
	} {
		_, err := schema.Compile(json.RawMessage(text))
		require.Error(t, err, "%.40s", text)
		assert.Contains(t, err.Error(), want, "%.40s", text)
		assert.Less(t, len(err.Error()), 500)
	}
	for _, text := range []string{`true`, `{}`, `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`, `{"$schema":"https://json-schema.org/draft/2020-12/schema"}`} {
		_, err := schema.Compile(json.RawMessage(text))
		assert.NoError(t, err, text)
	}
}

// doubling is a schema in which each of n definitions refers twice to the next one.
func doubling(n int) string {
	var defs strings.Builder
	for i := range n {
		fmt.Fprintf(&defs, `"a%d":{"allOf":[{"$ref":"#/$defs/a%d"},{"$ref":"#/$defs/a%d"}]},`, i, i+1, i+1)
	}
	return fmt.Sprintf(`{"$defs":{%s"a%d":true},"$ref":"#/$defs/a0"}`, defs.String(), n)
}

// What a sender may send takes time in proportion to its size: this test does not end otherwise.
func TestLargeData(t *testing.T) {
	t.Parallel()
	const tree = `{"anyOf":[{"type":"object"},{"type":"array","items":{"enum":["a","b"]}}]}`
	var alike []string // texts that the library's hash does not tell apart
	for i := range 30_000 {
		alike = append(alike, "["+strings.Repeat("-", i%2)+"1,[]]")
	}
	for name, test := range map[string]struct {
		schema, data string
		valid        bool
	}{
		"long numbers":    {`{"items":{"multipleOf":0.01}}`, `[` + strings.Repeat(`1e400,`, 20_000) + `1]`, true},
		"a slow pattern":  {`{"pattern":"^(a+)+$"}`, `"` + strings.Repeat("a", 100_000) + `b"`, false},
		"different lists": {`{"uniqueItems":true}`, `[` + nested(30_000) + `]`, true},
		"equal hashes":    {`{"uniqueItems":true}`, `[` + strings.Join(alike, ",") + `]`, false},
		"all wrong":       {`{"items":` + tree + `}`, `[` + strings.Repeat(`["x","y"],`, 50_000) + `1]`, false},
	} {
		s, err := schema.Compile(json.RawMessage(test.schema))
		require.NoError(t, err, name)
		err = s.Validate([]byte(test.data))
		assert.Equal(t, test.valid, err == nil, "%s: %v", name, err)
	}
}

// nested returns n lists that differ and that have the same values in the same order, so that a
// hash without ends of lists does not tell them apart.
func nested(n int) string {
	lists := make([]string, n)
	for i := range lists {
		var b strings.Builder
		for bit := range 15 { // [1 or ,1 for each bit
			if i>>bit&1 == 1 {
				b.WriteString(`[0],[],`)
			} else {
				b.WriteString(`[],[0],`)
			}
		}
		lists[i] = "[" + b.String() + "0]"
	}
	return strings.Join(lists, ",")
}

func TestUniqueItems(t *testing.T) {
	s, err := schema.Compile(json.RawMessage(`{"properties":{"uniqueItems":true,"list":{"uniqueItems":true}},"required":["uniqueItems"]}`))
	require.NoError(t, err)
	for list, unique := range map[string]bool{
		`[]`: true, `[1,"1",true,null,"true","null"]`: true, `[1,1.0]`: false, `[100,1e2]`: false, `[0,-0]`: false, `[0.1,1e-1]`: false,
		`[{"a":1,"b":[2]},{"b":[2],"a":1.0}]`: false, `[{"a":1},{"a":2}]`: true, `[[1],[[1]]]`: true, `["a","\u0061"]`: false, `"no list"`: true,
	} {
		err := s.Validate([]byte(`{"uniqueItems":0,"list":` + list + `}`))
		assert.Equal(t, unique, err == nil, "%s: %v", list, err)
		if !unique {
			assert.Contains(t, err.Error(), "/list: ")
		}
	}
}

// TestDrafts: each draft, a name of its own, and a boolean. Values that are data are no keywords.
func TestDrafts(t *testing.T) {
	for text, valid := range map[string]bool{
		`true`: true, `false`: false, `{"$id":"https://example.com/x","$ref":"#/$defs/a","$defs":{"a":{"type":"integer"}}}`: true,
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"integer"}`: true, `{"$schema":"http://json-schema.org/draft-04/schema#","minimum":1,"exclusiveMinimum":true}`: false,
		`{"$schema":"http://json-schema.org/draft-07/schema#","$ref":"#/definitions/a","definitions":{"a":{"type":"string"}}}`: false,
		`{"not":{"type":"integer"}}`: false, `{"enum":[{"$ref":"nowhere","$id":"x"},1]}`: true, `{"properties":{"$ref":{"type":"string"},"$id":true}}`: true,
		`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"const":1}}}`: true,
	} {
		s, err := schema.Compile(json.RawMessage(text))
		require.NoError(t, err, text)
		err = s.Validate([]byte("1"))
		assert.Equal(t, valid, err == nil, "%s: %v", text, err)
	}
}
