package schema_test

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"sync/atomic"
	"testing"
	"time"

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
	} {
		_, err := schema.Compile(json.RawMessage(text))
		require.Error(t, err, "%.40s", text)
		assert.Contains(t, err.Error(), want, "%.40s", text)
		assert.Less(t, len(err.Error()), 500)
	}
	for _, text := range []string{`true`, `{}`, `{"$schema":"http://json-schema.org/draft-07/schema#","type":"object"}`, `{"$schema":"https://json-schema.org/draft/2020-12/schema"}`, `{"$ref":"#"}`} {
		_, err := schema.Compile(json.RawMessage(text))
		assert.NoError(t, err, text)
	}
}

// TestTimeIsBounded: data that a sender chooses costs no more than its size suggests.
func TestTimeIsBounded(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ schema, data string }{
		"a schema of itself": {`{"$ref":"#"}`, `1`},
		"many numbers":       {`{"items":{"multipleOf":0.01}}`, `[` + strings.Repeat(`1e400,`, 20_000) + `1]`},
		"unique items":       {`{"uniqueItems":true}`, `[` + strings.Repeat(`{"a":[]},`, 20_000) + `1]`},
		"deep":               {`{"$defs":{"n":{"items":{"$ref":"#/$defs/n"}}},"$ref":"#/$defs/n"}`, strings.Repeat("[", 128) + strings.Repeat("]", 128)},
		"a slow pattern":     {`{"pattern":"^(a+)+$"}`, `"` + strings.Repeat("a", 100_000) + `b"`},
	} {
		s, err := schema.Compile(json.RawMessage(test.schema))
		require.NoError(t, err, name)
		took := processorTime(t, func() { _ = s.Validate([]byte(test.data)) }) // valid or not
		assert.Less(t, took, 20*time.Second, name)
	}
}

// heldBy is about the most that a call holds in memory at a time: what was reachable at a
// collection, not what is to be collected. How fast other processes are is of no importance: a
// collector that begins at a tenth more than what is held has those that take memory help it. What
// is taken meanwhile counts: a call that holds more than enough is made again, twice at most, and
// the least is the answer.
func heldBy(enough uint64, call func()) uint64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	least := uint64(math.MaxUint64)
	for i := 0; i < 3 && least >= enough; i++ {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		runtime.GC()
		metrics.Read(live)
		before := live[0].Value.Uint64()
		peak, ended, most := before, make(chan struct{}), make(chan uint64)
		go func() {
			for {
				now := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
				metrics.Read(now)
				peak = max(peak, now[0].Value.Uint64())
				select {
				case <-ended:
					most <- peak
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		call()
		close(ended)
		least = min(least, <-most-before)
	}
	return least
}

// TestAlternativesTakeLittle: of a list that is wrong everywhere not everything is kept that all
// alternatives had to say of each element.
func TestAlternativesTakeLittle(t *testing.T) {
	var colours []string
	for i := range 100 {
		colours = append(colours, fmt.Sprintf(`{"const":"c%d","title":"colour %d"}`, i, i))
	}
	colour := `{"oneOf":[` + strings.Join(colours, ",") + `]}`
	for _, text := range []string{
		`{"items":` + colour + `}`, `{"$schema":"http://json-schema.org/draft-07/schema#","items":` + colour + `}`, `{"unevaluatedItems":` + colour + `}`,
		`{"$ref":"#/$defs/l","$defs":{"l":{"items":{"$ref":"#/$defs/c"}},"c":` + colour + `}}`, `{"allOf":[{"items":` + colour + `}]}`, `{"contains":` + colour + `}`,
	} {
		s, err := schema.Compile(json.RawMessage(text))
		require.NoError(t, err)
		data := []byte(`[` + strings.Repeat(`"x",`, 5_000) + `"x"]`)
		const most = 16 << 20
		assert.Less(t, heldBy(most, func() { err = s.Validate(data) }), uint64(most), "%.60s", text)
		require.Error(t, err)
		require.NoError(t, s.Validate([]byte(`["c1","c99"]`)), "%.60s", text)
	}
}

// TestBothFormsOfASchemaAgree: data that is valid is taken, and other data is not, whatever the
// schema says of lists.
func TestBothFormsOfASchemaAgree(t *testing.T) {
	t.Parallel()
	const alternatives = `"anyOf":[{"type":"integer"},{"type":"object","properties":{"a":{"type":"string"}},"required":["a"]}]`
	for text, data := range map[string]struct{ valid, invalid []string }{
		`{"items":{` + alternatives + `}}`:                                                                                                               {[]string{`[]`, `[1,{"a":"x"}]`, `"x"`}, []string{`["x"]`, `[1,{"a":1}]`, `[{}]`}},
		`{"items":{` + alternatives + `,"unevaluatedProperties":false}}`:                                                                                 {[]string{`[1,{"a":"x"}]`}, []string{`[{"a":"x","b":1}]`}},
		`{"prefixItems":[{` + alternatives + `}],"unevaluatedItems":false}`:                                                                              {[]string{`[1]`, `[]`}, []string{`[1,2]`, `["x"]`}},
		`{"prefixItems":[{` + alternatives + `}],"items":{"type":"null"}}`:                                                                               {[]string{`[1,null]`}, []string{`[1,2]`, `[null]`}},
		`{"contains":{` + alternatives + `},"minContains":2,"maxContains":3}`:                                                                            {[]string{`["x",1,2]`}, []string{`[1]`, `[1,2,3,4]`}},
		`{"contains":{` + alternatives + `},"unevaluatedItems":{"const":"x"}}`:                                                                           {[]string{`["x",1]`}, []string{`["y",1]`, `["x"]`}},
		`{"$schema":"http://json-schema.org/draft-07/schema#","items":[{` + alternatives + `}],"additionalItems":{"type":"null"}}`:                       {[]string{`[1,null]`}, []string{`[1,1]`, `[null]`}},
		`{"$ref":"#/$defs/n","$defs":{"n":{"anyOf":[{"type":"null"},{"type":"array","items":{"$ref":"#/$defs/n"}}]}}}`:                                   {[]string{`null`, `[[null],[[[]]]]`}, []string{`1`, `[[1]]`}},
		`{"$dynamicAnchor":"n","type":["array","null"],"anyOf":[true],"items":{"$dynamicRef":"#n"}}`:                                                     {[]string{`[[null]]`}, []string{`[[1]]`}},
		`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"type":"array","anyOf":[true],"items":{"$recursiveRef":"#"}}`: {[]string{`[[]]`}, []string{`[[1]]`}},
		`{"items":{"anyOf":[{"$ref":"#/items/anyOf/1"},{"type":"null"}]}}`:                                                                               {[]string{`[null]`}, []string{`[1]`}},
		`{"items":{"$ref":"#/items","anyOf":[true]}}`:                                                                                                    {nil, []string{`[1]`}},
	} {
		s, err := schema.Compile(json.RawMessage(text))
		require.NoError(t, err, text)
		for _, valid := range data.valid {
			assert.NoError(t, s.Validate([]byte(valid)), "%s: %s", text, valid)
		}
		for _, invalid := range data.invalid {
			err := s.Validate([]byte(invalid))
			assert.Error(t, err, "%s: %s", text, invalid)
			assert.NotContains(t, fmt.Sprint(err), "too large", "%s: %s", text, invalid)
		}
	}
}

// TestWhateverASchemaIs: of each draft, with a name of its own, or a boolean.
func TestWhateverASchemaIs(t *testing.T) {
	for text, valid := range map[string]bool{
		`true`: true, `false`: false, `{"$id":"https://example.com/x","$ref":"#/$defs/a","$defs":{"a":{"type":"integer"}}}`: true,
		`{"$schema":"http://json-schema.org/draft-07/schema#","type":"integer"}`: true, `{"$schema":"http://json-schema.org/draft-04/schema#","minimum":1,"exclusiveMinimum":true}`: false,
		`{"not":{"type":"integer"}}`: false, `{"$id":"aviary:///inverse"}`: true, `{"$ref":"#"}`: false,
	} {
		s, err := schema.Compile(json.RawMessage(text))
		if err != nil {
			assert.Contains(t, text, "aviary:", "%v", err)
			continue
		}
		err = s.Validate([]byte("1"))
		assert.Equal(t, valid, err == nil, "%s: %v", text, err)
	}
}
