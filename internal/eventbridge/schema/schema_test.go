package schema_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	for name, test := range map[string]struct{ schema, data string }{
		"a schema of itself": {`{"$ref":"#"}`, `1`},
		"many numbers":       {`{"items":{"multipleOf":0.01}}`, `[` + strings.Repeat(`1e400,`, 20_000) + `1]`},
		"unique items":       {`{"uniqueItems":true}`, `[` + strings.Repeat(`{"a":[]},`, 20_000) + `1]`},
		"deep":               {`{"$defs":{"n":{"items":{"$ref":"#/$defs/n"}}},"$ref":"#/$defs/n"}`, strings.Repeat("[", 128) + strings.Repeat("]", 128)},
		"a slow pattern":     {`{"pattern":"^(a+)+$"}`, `"` + strings.Repeat("a", 100_000) + `b"`},
	} {
		s, err := schema.Compile(json.RawMessage(test.schema))
		require.NoError(t, err, name)
		began := time.Now()
		_ = s.Validate([]byte(test.data)) // valid or not
		assert.Less(t, time.Since(began), 20*time.Second, name)
	}
}
