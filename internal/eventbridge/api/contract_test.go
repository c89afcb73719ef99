package api_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"
)

// contract is the OpenAPI document that the API serves.
type contract struct {
	document map[string]any
	schemas  *jsonschema.Compiler
}

const contractURL = "file:///openapi.json"

func newContract(t *testing.T, text []byte) *contract {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	require.NoError(t, c.AddResource(contractURL, document))
	return &contract{document: document.(map[string]any), schemas: c}
}

// at returns the value at a path, and its JSON Pointer, following references.
func (c *contract) at(path ...string) (value any, pointer string) {
	value = c.document
	for _, step := range path {
		object, ok := value.(map[string]any)
		if !ok {
			return nil, pointer
		}
		value = object[step]
		pointer += "/" + strings.NewReplacer("~", "~0", "/", "~1").Replace(step)
		if object, ok = value.(map[string]any); ok {
			if ref, ok := object["$ref"].(string); ok {
				value, pointer = c.at(strings.Split(strings.TrimPrefix(ref, "#/"), "/")...)
			}
		}
	}
	return value, pointer
}

// holds checks one answer.
func (c *contract) holds(t *testing.T, method, route string, status int, header http.Header, body []byte) {
	t.Helper()
	what := fmt.Sprintf("%s %s: %d", method, route, status)
	response, _ := c.at("paths", route, strings.ToLower(method), "responses", fmt.Sprint(status))
	require.NotNil(t, response, "%s is not in the document", what)
	if len(body) == 0 {
		require.Equal(t, http.StatusNoContent, status, what)
		return
	}
	kind, _, err := mime.ParseMediaType(header.Get("Content-Type"))
	require.NoError(t, err, what)
	schema, pointer := c.at("paths", route, strings.ToLower(method), "responses", fmt.Sprint(status), "content", kind, "schema")
	require.NotNil(t, schema, "%s: %s is not in the document", what, kind)
	compiled, err := c.schemas.Compile(contractURL + "#" + pointer)
	require.NoError(t, err, what)
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	require.NoError(t, err, what)
	require.NoError(t, compiled.Validate(value), "%s: %s", what, body)
}

// operations are all of the document, as "METHOD path".
func (c *contract) operations() (all []string) {
	for path, item := range c.document["paths"].(map[string]any) {
		for method := range item.(map[string]any) {
			if method != "parameters" {
				all = append(all, strings.ToUpper(method)+" "+path)
			}
		}
	}
	return all
}

// keepsContract lets requests pass to an API and holds each answer against the document.
func keepsContract(t *testing.T, c *contract) func(http.Handler) http.Handler {
	t.Helper()
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			kept := &keeping{ResponseWriter: w, status: http.StatusOK}
			next.ServeHTTP(kept, r)
			if route := chi.RouteContext(r.Context()).RoutePattern(); strings.HasPrefix(route, "/v1/") {
				c.holds(t, r.Method, route, kept.status, w.Header(), kept.body.Bytes())
			}
		})
	}
}

type keeping struct {
	http.ResponseWriter
	status int
	body   bytes.Buffer
}

func (k *keeping) WriteHeader(status int) {
	k.status = status
	k.ResponseWriter.WriteHeader(status)
}

func (k *keeping) Write(p []byte) (int, error) {
	k.body.Write(p)
	return k.ResponseWriter.Write(p)
}

// answer is what a request was answered.
type answer struct {
	status int
	header http.Header
	body   string
}

// problem is a problem document.
type problem struct {
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Faults []struct {
		Pointer string `json:"pointer"`
		Problem string `json:"problem"`
	} `json:"faults"`
}

func (a answer) problem(t *testing.T) (p problem) {
	t.Helper()
	require.Equal(t, "application/problem+json", a.header.Get("Content-Type"), a.body)
	require.NoError(t, json.Unmarshal([]byte(a.body), &p))
	require.Equal(t, a.status, p.Status)
	return p
}

// call makes a request; headers are pairs.
func call(t *testing.T, method, url, body string, headers ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for pair := range slices.Chunk(headers, 2) {
		req.Header.Set(pair[0], pair[len(pair)-1])
	}
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return answer{resp.StatusCode, resp.Header, string(text)}
}
