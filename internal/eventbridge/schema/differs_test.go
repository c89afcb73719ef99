package schema_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

// maker makes schemas and data of few names and values, so that they meet.
type maker struct {
	*rand.Rand
	draft int
}

func (m *maker) one(all ...any) any { return all[m.IntN(len(all))] }

func (m *maker) name() string { return string(rune('a' + m.IntN(4))) }

func (m *maker) value(depth int) any {
	switch n := m.IntN(9); {
	case n < 2 && depth > 0:
		object := map[string]any{}
		for range m.IntN(4) {
			object[m.name()] = m.value(depth - 1)
		}
		return object
	case n < 5 && depth > 0:
		list := []any{}
		for range m.IntN(4) {
			list = append(list, m.value(depth-1))
		}
		if m.IntN(8) == 0 {
			for i := range 21 {
				list = append(list, i)
			}
		}
		return list
	}
	return m.one(nil, true, false, 0, 1, 2, 1.5, -1, json.Number("1e2"), json.Number("1.0"), json.Number("100"), "", "a", "b", "abc", "1", json.Number("1e-300"))
}

func (m *maker) many(depth int) []any {
	all := []any{}
	for range 1 + m.IntN(3) {
		all = append(all, m.schema(depth-1))
	}
	return all
}

func (m *maker) named(depth int) map[string]any {
	all := map[string]any{}
	for range 1 + m.IntN(3) {
		all[m.name()] = m.schema(depth - 1)
	}
	return all
}

func (m *maker) schema(depth int) any {
	if depth <= 0 || m.IntN(10) == 0 {
		if m.draft == 4 {
			return m.one(map[string]any{}, map[string]any{"type": "integer"}, map[string]any{"type": m.one("string", "object", "array")})
		}
		return m.one(true, true, false, map[string]any{"type": m.one("integer", "number", "string", "object", "array")}, map[string]any{"const": m.value(1)})
	}
	s := map[string]any{}
	for range 1 + m.IntN(3) {
		inner := func() any { return m.schema(depth - 1) }
		type made struct {
			from int
			name string
			make func() any
		}
		all := []made{
			{4, "type", func() any { return m.one("object", "array", "integer", "number", []any{"object", "array", "string"}) }},
			{4, "enum", func() any { return []any{m.value(1), m.value(2), "enum"} }},
			{4, "allOf", func() any { return m.many(depth) }}, {4, "anyOf", func() any { return m.many(depth) }}, {4, "oneOf", func() any { return m.many(depth) }},
			{4, "not", inner}, {4, "properties", func() any { return m.named(depth) }},
			{4, "patternProperties", func() any { return map[string]any{m.one("^a", "b|c", ".").(string): inner()} }},
			{4, "additionalProperties", inner}, {4, "items", inner}, {4, "uniqueItems", func() any { return true }},
			{4, "minimum", func() any { return m.one(0, 1, json.Number("1e-300")) }}, {4, "multipleOf", func() any { return m.one(1, 0.5, 3) }},
			{4, "pattern", func() any { return m.one("^a", "b$") }}, {4, "minLength", func() any { return 1 }}, {4, "maxItems", func() any { return m.IntN(3) }},
			{4, "maxProperties", func() any { return m.IntN(3) }}, {4, "required", func() any { return []any{m.name()} }},
			{4, "$ref", func() any { return m.one("#/definitions/x", "#/definitions/y", "#") }},
			{4, "format", func() any { return m.one("ipv4", "regex", "date") }},
			{6, "const", func() any { return m.value(2) }}, {6, "contains", inner}, {6, "propertyNames", inner}, {6, "exclusiveMaximum", func() any { return 2 }},
			{7, "if", inner}, {7, "then", inner}, {7, "else", inner},
			{2019, "unevaluatedProperties", inner}, {2019, "unevaluatedItems", inner}, {2019, "unevaluatedProperties", func() any { return false }},
			{2019, "unevaluatedItems", func() any { return false }}, {2019, "dependentSchemas", func() any { return m.named(depth) }},
			{2019, "dependentRequired", func() any { return map[string]any{m.name(): []any{m.name()}} }}, {2019, "minContains", func() any { return m.IntN(3) }},
			{2020, "prefixItems", func() any { return m.many(depth) }}, {2020, "$dynamicRef", func() any { return m.one("#n", "t#n", "#/definitions/x") }},
			{2020, "$ref", func() any { return m.one("t", "#/definitions/x") }},
		}
		if m.draft < 2020 {
			all = append(all, made{4, "items", func() any { return m.many(depth) }}, made{4, "additionalItems", inner},
				made{4, "dependencies", func() any { return map[string]any{m.name(): m.one(inner(), []any{m.name()})} }})
		}
		if m.draft == 2019 {
			all = append(all, made{2019, "$recursiveRef", func() any { return "#" }})
		}
		if k := all[m.IntN(len(all))]; m.draft >= k.from {
			s[k.name] = k.make()
		}
	}
	return s
}

// TestAsTheLibraryHasIt: what is counted, forgotten and asked the other way round changes nothing
// about what is valid.
func TestAsTheLibraryHasIt(t *testing.T) {
	t.Parallel()
	drafts := map[int]string{
		4: "http://json-schema.org/draft-04/schema#", 6: "http://json-schema.org/draft-06/schema#", 7: "http://json-schema.org/draft-07/schema#",
		2019: "https://json-schema.org/draft/2019-09/schema", 2020: "https://json-schema.org/draft/2020-12/schema",
	}
	valid, checked := 0, 0
	for seed := range uint64(2_000) {
		m := &maker{Rand: rand.New(rand.NewPCG(seed, 7))}
		m.draft = []int{4, 6, 7, 2019, 2020}[m.IntN(5)]
		root, ok := m.schema(4).(map[string]any)
		if !ok {
			continue
		}
		root["$schema"] = drafts[m.draft]
		definitions := map[string]any{"x": m.schema(2), "y": m.schema(2)}
		if m.draft == 2020 {
			definitions["t"] = map[string]any{"$id": "t", "$dynamicAnchor": "n", "anyOf": []any{m.schema(2), m.schema(2)}}
			root["$dynamicAnchor"] = "n"
		}
		if m.draft == 2019 {
			root["$recursiveAnchor"] = true
			definitions["t"] = map[string]any{"$id": "t", "$recursiveAnchor": m.IntN(2) == 0, "items": map[string]any{"$recursiveRef": "#"}}
		}
		root["definitions"] = definitions
		text, err := json.Marshal(root)
		require.NoError(t, err)
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		require.NoError(t, err)
		c := jsonschema.NewCompiler()
		require.NoError(t, c.AddResource("aviary:///schema", doc))
		plain, err := c.Compile("aviary:///schema")
		ours, ourErr := schema.Compile(text)
		require.Equal(t, err == nil, ourErr == nil, "%s: %v %v", text, err, ourErr)
		if err != nil {
			continue
		}
		for range 8 {
			data, err := json.Marshal(m.value(4))
			require.NoError(t, err)
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
			require.NoError(t, err)
			want, got := plain.Validate(value), ours.Validate(data)
			require.Equal(t, want == nil, got == nil, "seed %d: %s\n%s\n%v\n%v", seed, text, data, fmt.Sprint(want), got)
			if checked++; want == nil {
				valid++
			}
		}
	}
	t.Log(checked, valid)
	require.Greater(t, valid, checked/10)
}
