// The time of checks is bounded in steps; with the race detector each takes ten times as long.

//go:build !race

package schema_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

func listed(n int, format string) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}

func repeated(n int, text string) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }

// twice is n parts, of which each leads to the next one two times, and an empty one.
func twice(n int) string {
	var all strings.Builder
	for i := range n {
		fmt.Fprintf(&all, `"c%d":{"allOf":[{"$ref":"#/$defs/c%[2]d"},{"$ref":"#/$defs/c%[2]d"}]},`, i, i+1)
	}
	return all.String() + fmt.Sprintf(`"c%d":{}`, n)
}

// TestStepsAreBounded: data whose check would take minutes, or for ever, is refused after some
// tenths of a second.
func TestStepsAreBounded(t *testing.T) {
	deep := func(open, inner, shut string) string {
		return strings.Repeat(open, 100) + inner + strings.Repeat(shut, 100)
	}
	unlike := make([]string, 40_000) // of one hash: only where a text ends differs
	for i := range unlike {
		text := strings.Repeat(`a\u0004`, 20)
		unlike[i] = `["` + text[:7*(i%20)] + `a","` + text[7*(i%20):] + `a"]`
	}
	signs := make([]string, 1_000) // of one hash, which has no signs
	for i := range signs {
		one := strings.Repeat("1,", 50)
		for bit := range 10 {
			one += []string{"1,", "-1,"}[i>>bit&1]
		}
		signs[i] = "[" + one + "1]"
	}
	long := "1." + strings.Repeat("3", 390) + "e-400"
	chain := make([]string, 900)
	for i := range chain {
		chain[i] = fmt.Sprintf(`"c%d":{"$ref":"#/$defs/c%d"}`, i, i+1)
	}
	for name, test := range map[string]struct{ schema, data string }{
		"alternatives that refer to themselves": {
			`{"$defs":{"n":{"anyOf":[{"properties":{"op":{"const":"and"},"args":{"items":{"$ref":"#/$defs/n"}}},"required":["op","args"],"type":"object"},
				{"properties":{"op":{"enum":["and","or"]},"args":{"items":{"$ref":"#/$defs/n"}}},"required":["op","args"],"type":"object"},{"type":"string"}]}},"$ref":"#/$defs/n"}`,
			deep(`{"op":"and","args":[`, "1", `]}`),
		},
		"patterns of one name": {
			`{"properties":{"a":{"$ref":"#"}},"patternProperties":{"a":{"$ref":"#"},"^a":{"$ref":"#"}},"minProperties":1}`, deep(`{"a":`, `{}`, `}`),
		},
		"in draft 7": {
			`{"$schema":"http://json-schema.org/draft-07/schema#","anyOf":[{"items":{"$ref":"#"},"maxItems":1},{"items":{"$ref":"#"},"minItems":1}],"type":"array"}`, deep("[", "1", "]"),
		},
		"hundreds of alternatives of lists in lists": {
			`{"items":{"items":{"oneOf":[` + listed(500, `{"type":"object","required":["k%d"]}`) + `]}}}`, `[` + strings.TrimSuffix(strings.Repeat(`[`+strings.Repeat(`{},`, 200)+`{}],`, 200), ",") + `]`,
		},
		"a long enumeration":                 {`{"items":{"enum":[` + listed(10_000, `"%d"`) + `]}}`, `[` + strings.Repeat(`"x",`, 60_000) + `"x"]`},
		"a regular expression":               {`{"pattern":"(x?){500}y"}`, `"` + strings.Repeat("x", 200_000) + `"`},
		"elements of one hash":               {`{"uniqueItems":true}`, `[` + strings.Join(unlike, ",") + `]`},
		"elements of one hash but for signs": {`{"uniqueItems":true}`, `[` + strings.Join(signs, ",") + `]`},
		"a part that only a dynamic reference leads to": {
			`{"$ref":"tree","$defs":{"a/b~%":{"$dynamicAnchor":"n","anyOf":[{"items":{"$dynamicRef":"tree#n"},"maxItems":1},{"items":{"$dynamicRef":"tree#n"},"minItems":1}],"type":"array"},
				"tree":{"$id":"tree","$dynamicAnchor":"n","items":{"$dynamicRef":"#n"}}}}`, deep("[", "1", "]"),
		},
		"enumerations of many patterns": {`{"patternProperties":{` + listed(100, `"^x.{0,%d}":{"enum":[`+listed(400, `%d`)+`]}`) + `}}`, `{` + listed(1_000, `"x%d":399`) + `}`},
		"lists of an enumeration that differ at their end": {
			`{"items":{"anyOf":[` + strings.TrimSuffix(strings.Repeat(`{"$ref":"#/$defs/e"},`, 500), ",") + `]},"$defs":{"e":{"enum":[` + listed(100, `[[`+strings.Repeat(`1,`, 1_000)+`%d]]`) + `]}}}`,
			`[` + strings.TrimSuffix(strings.Repeat(`[[`+strings.Repeat(`1,`, 1_000)+`-1]],`, 60), ",") + `]`,
		},
		"a few long elements that are compared many times": {
			`{"allOf":[` + strings.TrimSuffix(strings.Repeat(`{"uniqueItems":true},`, 1_900), ",") + `]}`, `[` + listed(20, `[`+strings.Repeat(`1,`, 3_000)+`%d]`) + `]`,
		},
		"names that others require": {
			`{"items":{"dependentRequired":{` + listed(20_000, `"k%d":[]`) + `}}}`, `[` + strings.Repeat(`{},`, 60_000) + `{}]`,
		},
		"many names that one requires": {
			`{"items":{"dependentRequired":{"a":[` + listed(20_000, `"k%d"`) + `]}}}`, `[` + strings.Repeat(`{"a":1},`, 30_000) + `{"a":1}]`,
		},
		"names that others require in draft 7": {
			`{"$schema":"http://json-schema.org/draft-07/schema#","items":{"dependencies":{` + listed(20_000, `"k%d":[]`) + `}}}`, `[` + strings.Repeat(`{},`, 60_000) + `{}]`,
		},
		"many names that one requires in draft 7": {
			`{"$schema":"http://json-schema.org/draft-07/schema#","items":{"dependencies":{"a":[` + listed(20_000, `"k%d"`) + `]}}}`, `[` + strings.Repeat(`{"a":1},`, 30_000) + `{"a":1}]`,
		},
		"an enumeration that only a recursive reference leads to": {
			`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"enum":[[` + strings.Repeat(`1,`, 29_999) + `1],` + listed(10_000, `%d`) + `],"items":{"$ref":"tree"},
				"$defs":{"tree":{"$id":"tree","$recursiveAnchor":true,"anyOf":[{"$recursiveRef":"#"},{"type":"number"}]}}}`,
			`[` + strings.Repeat(`1,`, 29_999) + `1]`,
		},
		"a dynamic reference below many parts": {
			`{"$ref":"#/$defs/c0","$defs":{"m":{"$dynamicAnchor":"m","type":"string"},"c900":{"items":{"$ref":"#/$defs/c0"},"properties":{"t":{"items":{"$dynamicRef":"#m"}}}},` + strings.Join(chain, ",") + `}}`,
			deep(`[`, `{"t":[`+strings.Repeat(`"x",`, 60_000)+`"x"]}`, `]`),
		},
		"what is not evaluated yet, for many that look no further": {
			`{"unevaluatedProperties":true,"allOf":[` + repeated(500, `true`) + `]}`, `{` + listed(30_000, `"k%d":1`) + `}`,
		},
		"elements not evaluated yet": {
			`{"unevaluatedItems":true,"not":{"anyOf":[` + repeated(1_500, `{"type":"string"}`) + `]}}`, `[` + repeated(60_000, `1`) + `]`,
		},
		"a circle at the end of a long chain": {
			`{"$ref":"#/$defs/c0","$defs":{"c900":{"items":{"$ref":"#/$defs/c0"},"anyOf":[{"$ref":"#/$defs/c0"},{"type":"array"}]},` + strings.Join(chain, ",") + `}}`,
			deep(`[`, `[]`, `]`),
		},
		"many circles at the end of a short chain": {
			`{"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"items":{"$ref":"#/$defs/a"},"anyOf":[` + repeated(900, `{"$ref":"#/$defs/a"}`) + `,{"type":"array"}]}}}`,
			`[` + repeated(8, deep(`[`, `[]`, `]`)) + `]`,
		},
		"a chain that would take the stack": {
			`{"$ref":"#/$defs/c0","$defs":{"c900":{"items":{"$ref":"#/$defs/c0"}},` + strings.Join(chain, ",") + `}}`, deep(`[`, `[]`, `]`),
		},
		"long numbers that are no integers": {`{"items":{"anyOf":[` + repeated(1_900, `{"type":"integer"}`) + `]}}`, `[` + repeated(1_000, long) + `]`},
		"long numbers that are compared":    {`{"items":{"allOf":[` + repeated(1_900, `{"minimum":1e-400}`) + `]}}`, `[` + repeated(1_000, long) + `]`},
		"long numbers in lists":             {`{"items":{"enum":[` + listed(600, `[%d]`) + `]}}`, `[` + repeated(1_000, `[`+long+`]`) + `]`},
		"long numbers that differ":          {`{"items":{"allOf":[` + repeated(30, `{"uniqueItems":true}`) + `]}}`, `[` + repeated(100, `[`+listed(20, `1%d`+long[1:])+`]`) + `]`},
		"a list with a long number that no part looks into": {
			`{"$ref":"#/$defs/c0","$defs":{` + twice(20) + `}}`, `[1e-300,` + repeated(131_000, `1`) + `]`,
		},
		"long texts that differ at their end": {`{"allOf":[` + repeated(1_900, `{"uniqueItems":true}`) + `]}`, `[` + listed(20, `"`+strings.Repeat("x", 50_000)+`%02d"`) + `]`},
		"names that are checked":              {`{"propertyNames":{"anyOf":[` + listed(500, `{"pattern":"^k%d"}`) + `]}}`, `{` + listed(20_000, `"x%d":1`) + `}`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := schema.Compile(json.RawMessage(test.schema))
			require.NoError(t, err)
			synctest.Test(t, func(t *testing.T) { // where the clock stands: steps have to end it
				took := processorTime(t, func() { require.ErrorIs(t, s.Validate([]byte(test.data)), schema.ErrTooMuchWork) })
				assert.Less(t, took, 20*time.Second)
				t.Log(took)
			})
			synctest.Test(t, func(t *testing.T) { // again, with the checker that was ended
				steps := schema.MostSteps / 20
				require.ErrorIs(t, s.Check(t.Context(), []byte(test.data), &steps), schema.ErrTooMuchWork)
			})
		})
	}
}

// stepsOf returns how many steps the check of valid data takes. The clock stands meanwhile: time is
// charged, too.
func stepsOf(t *testing.T, s *schema.Schema, data string) (took int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		steps := schema.MostSteps
		require.NoError(t, s.Check(t.Context(), []byte(data), &steps), "%.60s", data)
		took = schema.MostSteps - steps
	})
	return took
}

// TestStepsSuffice: usual data takes few steps, and what it takes is counted.
func TestStepsSuffice(t *testing.T) {
	t.Parallel()
	s, err := schema.Compile(json.RawMessage(`{"type":"object","required":["id"],"properties":{"id":{"type":"string","pattern":"^[a-z]+$"},
		"items":{"type":"array","items":{"oneOf":[` + listed(20, `{"properties":{"kind":{"const":"k%d"}},"required":["kind"]}`) + `]}}}}`))
	require.NoError(t, err)
	few := stepsOf(t, s, `{"id":"abc","items":[`+listed(20, `{"kind":"k%d"}`)+`]}`)
	assert.Positive(t, few)
	assert.Less(t, few, 3000)
	stepsOf(t, s, `{"id":"abc","items":[`+strings.Repeat(`{"kind":"k1"},`, 9_000)+`{"kind":"k2"}]}`)
	steps := few / 2
	require.ErrorIs(t, s.Check(t.Context(), []byte(`{"id":"abc","items":[`+listed(20, `{"kind":"k%d"}`)+`]}`), &steps), schema.ErrTooMuchWork)
	assert.Zero(t, steps)
}

// TestLongEnumerationsOfSome: what takes long for one member, or for the first element, is not
// charged for all beside it.
func TestLongEnumerationsOfSome(t *testing.T) {
	t.Parallel()
	short := listed(20, `"p%d":{"type":"string"}`)
	member := `,` + listed(20, `"p%d":"x"`) + `}`
	for name, test := range map[string]struct{ part, value string }{
		"numbers":        {`{"properties":{"category":{"enum":[` + listed(100, `%d`) + `]},` + short + `}}`, `{"category":99` + member},
		"texts":          {`{"properties":{"sku":{"enum":[` + listed(4_000, `"k%d"`) + `]},` + short + `}}`, `{"sku":"k3999"` + member},
		"those unnamed":  {`{"properties":{` + short + `},"additionalProperties":{"enum":[` + listed(4_000, `"k%d"`) + `]}}`, `{"sku":"k3999"` + member},
		"a pattern":      {`{"patternProperties":{"^sku":{"enum":[` + listed(4_000, `"k%d"`) + `]}},"properties":{` + short + `}}`, `{"sku":"k3999"` + member},
		"a tuple":        {`{"prefixItems":[{"enum":[` + listed(100, `%d`) + `]}],"items":{"type":"string"}}`, `[99,` + listed(20, `"%d"`) + `]`},
		"one in draft 7": {`{"items":[{"enum":[` + listed(100, `%d`) + `]}],"additionalItems":{"type":"string"}}`, `[99,` + listed(20, `"%d"`) + `]`},
	} {
		draft := ``
		if strings.Contains(name, "draft 7") {
			draft = `"$schema":"http://json-schema.org/draft-07/schema#",`
		}
		s, err := schema.Compile(json.RawMessage(`{` + draft + `"items":` + test.part + `}`))
		require.NoError(t, err, name)
		require.NoError(t, s.Validate([]byte(`[`+strings.TrimSuffix(strings.Repeat(test.value+",", 1_000), ",")+`]`)), name)
	}
}

// TestUsualSchemasSuffice: what is charged by the most that it may be leaves room for usual schemas
// and data of an event's greatest size.
func TestUsualSchemasSuffice(t *testing.T) {
	t.Parallel()
	members := listed(50, `"p%d":{"type":"string","minLength":1}`)
	tree := `{"p1":"x","children":[` + strings.TrimSuffix(strings.Repeat(`{"p2":"x","p3":"y","children":[{"p1":"x"}]},`, 4_000), ",") + `]}`
	numbers := `[` + listed(10, `{"a":%[1]d,"b":1,"c":2,"d":3,"e":[4,5]}`) + `]`
	for name, test := range map[string]struct{ schema, data string }{
		"a recursive reference": {
			`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"properties":{` + members + `,"children":{"items":{"$recursiveRef":"#"}}}}`, tree,
		},
		"a dynamic reference":        {`{"$dynamicAnchor":"n","properties":{` + members + `,"children":{"items":{"$dynamicRef":"#n"}}}}`, tree},
		"different elements":         {`{"items":{"uniqueItems":true}}`, `[` + strings.TrimSuffix(strings.Repeat(numbers+`,`, 700), ",") + `]`},
		"different elements of many": {`{"uniqueItems":true}`, `[` + listed(5_000, `{"a":%[1]d,"b":1,"c":2,"d":3,"e":[4,5]}`) + `]`},
		"an enumeration of objects":  {`{"items":{"enum":[` + listed(50, `{"code":%d,"name":"x"}`) + `]}}`, `[` + strings.TrimSuffix(strings.Repeat(`{"code":49,"name":"x"},`, 5_000), ",") + `]`},
		"names that others require": {
			`{"items":{"dependentRequired":{` + listed(30, `"k%d":["a","b"]`) + `}}}`, `[` + strings.TrimSuffix(strings.Repeat(`{"k1":1,"a":2,"b":3},`, 15_000), ",") + `]`,
		},
		"what is not evaluated by thirty alternatives": {
			`{"items":{"unevaluatedProperties":false,"properties":{"id":{"type":"string"}},"oneOf":[` +
				listed(30, `{"properties":{"kind":{"const":"k%d"},"a":{"type":"integer"}},"required":["kind"]}`) + `]}}`,
			`[` + repeated(6_000, `{"id":"x","kind":"k29","a":1}`) + `]`,
		},
		"numbers, of which some are long": {
			`{"items":{"type":"object","properties":{"a":{"type":"integer","minimum":0},"b":{"type":"number","maximum":1e9},"c":{"enum":[1,2,3]}}}}`,
			`[` + repeated(10_000, `{"a":123,"b":2.2250738585072014e-308,"c":3}`) + `]`,
		},
		"a great many numbers":        {`{"items":{"type":"number"}}`, `[` + repeated(500_000, `1`) + `]`},
		"many numbers in bounds":      {`{"items":{"type":"number","minimum":0,"maximum":100}}`, `[` + repeated(200_000, `12.5`) + `]`},
		"many multiples":              {`{"items":{"multipleOf":0.01}}`, `[` + repeated(150_000, `12.25`) + `]`},
		"a list that many lead to":    {`{"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"$ref":"#/$defs/b"}]},"b":{"items":{"type":["string","null"]}}}}`, `[` + repeated(260_000, `"a"`) + `]`},
		"a recursive one with much":   {`{"$schema":"https://json-schema.org/draft/2019-09/schema","$recursiveAnchor":true,"properties":{` + listed(900, `"p%d":{"type":"string"}`) + `,"children":{"items":{"$recursiveRef":"#"}}}}`, tree},
		"different numbers":           {`{"items":{"uniqueItems":true}}`, `[` + repeated(3_000, `[`+listed(20, `%d.5`)+`]`) + `]`},
		"long texts that differ":      {`{"items":{"uniqueItems":true}}`, `[` + repeated(40, `[`+listed(20, `"`+strings.Repeat("x", 1_000)+`%02d"`)+`]`) + `]`},
		"one list of long texts":      {`{"uniqueItems":true}`, `[` + listed(20, `"`+strings.Repeat("x", 50_000)+`%02d"`) + `]`},
		"an enumeration of long ones": {`{"items":{"enum":[` + listed(50, `"`+strings.Repeat("x", 2_000)+`%02d"`) + `]}}`, `[` + repeated(400, `"`+strings.Repeat("x", 2_000)+`49"`) + `]`},
		"deep in a deep schema": {
			`{"$ref":"#/$defs/c0","$defs":{"c40":{"type":"array","items":{"$ref":"#/$defs/c0"}},` + listed(40, `"c%[1]d":{"allOf":[{"$ref":"#/$defs/n%[1]d"}]},"n%[1]d":{"$ref":"#/$defs/e%[1]d"}`) +
				`,` + listed(40, `"e%d":{"$ref":"#/$defs/c40"}`) + `}}`, strings.Repeat("[", 128) + strings.Repeat("]", 128),
		},
	} {
		s, err := schema.Compile(json.RawMessage(test.schema))
		require.NoError(t, err, name)
		t.Log(name, stepsOf(t, s, test.data))
	}
}

// TestLongTextsThatDifferAreCharged: to find equal ones, or equal lists with some, takes as long as
// they are.
func TestLongTextsThatDifferAreCharged(t *testing.T) {
	t.Parallel()
	s, err := schema.Compile(json.RawMessage(`{"uniqueItems":true}`))
	require.NoError(t, err)
	long := strings.Repeat("x", 40_000)
	for data, least := range map[string]int{
		`[` + listed(15, `"`+long+`%d"`) + `]`:       500,
		`[` + listed(25, `"`+long+`%d"`) + `]`:       240,
		`[` + listed(10, `["`+long+`%d"]`) + `]`:     60,
		`[` + listed(10, `{"`+long+`":%d}`) + `]`:    60,
		`[` + listed(25, `[["`+long+`%d"]]`) + `]`:   60,
		`[` + listed(25, `[{"`+long+`%d":1}]`) + `]`: 60,
	} {
		took := stepsOf(t, s, data)
		assert.Greater(t, took, least, "%.60s", data)
		assert.Less(t, took, 20_000, "%.60s", data)
		t.Log(took)
	}
}

// TestWhatNoPartLooksIntoIsNotLookedThrough: that a list or an object has a long number does not
// have it looked through for parts that have none below.
func TestWhatNoPartLooksIntoIsNotLookedThrough(t *testing.T) {
	t.Parallel()
	s, err := schema.Compile(json.RawMessage(`{"$ref":"#/$defs/c0","$defs":{` + twice(13) + `}}`))
	require.NoError(t, err)
	took := stepsOf(t, s, `[1e-300,`+repeated(250_000, `1`)+`]`)
	assert.Less(t, took, 100_000) // 57,343 for the parts
	t.Log(took)
}

// TestLongNumbersAreLookedForOnce: that data has one long number does not have all of it looked
// through at each depth, for each part.
func TestLongNumbersAreLookedForOnce(t *testing.T) {
	t.Parallel()
	data := strings.Repeat(`{"a":`, 100) + `{"x":[` + repeated(450_000, `1`) + `,2.2250738585072014e-308]}` + strings.Repeat(`}`, 100)
	for name, node := range map[string]string{
		"patterns":  `"patternProperties":{"^y-":true}`,
		"constants": `"anyOf":[` + listed(30, `{"anyOf":[{"const":%d},{"type":"object","required":["q%[1]d"]}]}`) + `,{"type":"object"}]`,
		"lists":     `"anyOf":[` + listed(30, `{"anyOf":[{"const":[[%d]]},{"type":"object","required":["q%[1]d"]}]}`) + `,{"type":"object"}]`,
	} {
		s, err := schema.Compile(json.RawMessage(`{"$ref":"#/$defs/n","$defs":{"n":{` + node + `,"properties":{"a":{"$ref":"#/$defs/n"}}}}}`))
		require.NoError(t, err, name)
		took := processorTime(t, func() { require.NoError(t, s.Validate([]byte(data)), name) })
		assert.Less(t, took, 20*time.Second, name) // minutes otherwise
		t.Log(name, took)
	}
}

// TestManyAtATime: validations at a time do not count each other's steps.
func TestManyAtATime(t *testing.T) {
	t.Parallel()
	s, err := schema.Compile(json.RawMessage(`{"items":{"anyOf":[` + listed(30, `{"const":%d}`) + `]},"$defs":{"r":{"pattern":"^a"}},"propertyNames":{"$ref":"#/$defs/r"}}`))
	require.NoError(t, err)
	valid, invalid := []byte(`[`+listed(30, `%d`)+`]`), []byte(`[1,77]`)
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for range 50 {
				assert.NoError(t, s.Validate(valid))
				assert.ErrorContains(t, s.Validate(invalid), "/1")
				assert.NoError(t, s.Validate([]byte(`{"ab":1}`)))
			}
		})
	}
	all.Wait()
}

// TestRegularExpressionsTakeLittle: neither those of a schema nor those of data, where a schema has
// data be one, are compiled into megabytes.
func TestRegularExpressionsTakeLittle(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := schema.Compile(json.RawMessage(`{"anyOf":[` + listed(1_500, `{"pattern":"a{1000}%d"}`) + `]}`))
	require.ErrorContains(t, err, "regular expressions")
	_, err = schema.Compile(json.RawMessage(`{"pattern":"` + strings.Repeat("a{1000}", 100) + `"}`))
	require.Error(t, err)
	s, err := schema.Compile(json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","format":"regex"}`))
	require.NoError(t, err)
	require.NoError(t, s.Validate([]byte(`"^a{1000}$"`)))
	require.Error(t, s.Validate([]byte(`"("`)))
	require.Error(t, s.Validate([]byte(`"`+strings.Repeat("a{1000}", 30_000)+`"`)))
	for range 3 { // each has millions of characters in its class
		require.Error(t, s.Validate([]byte(`"[`+strings.Repeat(`\\pL`, 6_600)+`]"`)))
	}
	for _, text := range []string{`[` + strings.Repeat(`\\pL`, 6_600) + `]`, `(?i)[` + strings.Repeat(`B-𞥃`, 3_000) + `]`} {
		_, err = schema.Compile(json.RawMessage(`{"pattern":"` + text + `"}`))
		require.ErrorContains(t, err, "/pattern")
	}
	s, err = schema.Compile(json.RawMessage(`{"$schema":"http://json-schema.org/draft-07/schema#","items":{"format":"regex"}}`))
	require.NoError(t, err)
	require.ErrorIs(t, s.Validate([]byte(`[`+repeated(100, `"(?i)[B-𞥃]\\p{L}"`)+`]`)), schema.ErrTooMuchWork)
	require.NoError(t, s.Validate([]byte(`["(?i)^[a-zà-ÿ]+$","^\\p{L}+$"]`)))
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(256<<20))
}

// TestWideRangesAreBoundedWhereCaseIsIgnored: elsewhere they cost nothing, and ordinary expressions
// have many.
func TestWideRangesAreBoundedWhereCaseIsIgnored(t *testing.T) {
	const start = `[A-Z_a-zÀ-ÖØ-öø-˿Ͱ-ͽͿ-\x{1FFF}\x{200C}-\x{200D}⁰-\x{218F}Ⰰ-\x{2FEF}、-\x{D7FF}豈-\x{FDCF}ﷰ-\x{FFFD}𐀀-\x{EFFFF}]` // of XML's names
	compile := func(group string) error {
		doc, err := json.Marshal(map[string]any{"pattern": `^` + fmt.Sprintf(group, start) + `$`})
		require.NoError(t, err)
		_, err = schema.Compile(doc)
		return err
	}
	for _, group := range []string{`(?:%s)+`, `(?P<i>%s)`, `(?s:%s)`, `(?-i)%s`, `(?s-i:%s)`, `(?:i)%s`, `i(?:x)%s(?m)i`} {
		require.NoError(t, compile(group), group)
	}
	for _, group := range []string{`(?i)%s`, `(?i:%s)`, `(?si)%s`, `(?is:%s)`, `(?si-m:%s)`, `(?:(?mi)%s)`} {
		require.ErrorContains(t, compile(group), "classes or wide ranges", group)
	}
}

// TestManyPartsAreRefused: compiling takes time that grows with the square of them.
func TestManyPartsAreRefused(t *testing.T) {
	_, err := schema.Compile(json.RawMessage(`{"properties":{` + listed(15_000, `"%d":{}`) + `}}`))
	require.ErrorContains(t, err, "at most 2000 objects")
	_, err = schema.Compile(json.RawMessage(`{"properties":{` + listed(1_900, `"%d":{"title":""}`) + `}}`))
	require.NoError(t, err)
}

// TestCompilingIsBounded: neither depth nor anchors in what is no schema have it take minutes.
func TestCompilingIsBounded(t *testing.T) {
	t.Parallel()
	nots := func(n int, inner string) string {
		return strings.ReplaceAll(listed(n, `{"$dynamicAnchor":"a%d","not":`), ":,", ":") + inner + strings.Repeat(`}`, n)
	}
	signs := make([]string, 3_000)
	for i := range signs {
		one := ""
		for bit := range 12 {
			one += []string{"1,", "-1,"}[i>>bit&1]
		}
		signs[i] = "[" + one + "1]"
	}
	alike := `[` + strings.Join(signs, ",") + `]`
	inner := make([]string, 100)
	for i := range inner {
		inner[i] = `{"$ref":"#/x` + strings.Repeat("/not", 99-i) + `"}`
	}
	keys, spelled := make([]string, 40), make([]string, 40)
	for i := range keys {
		keys[i] = `{"$ref":"#` + strings.Repeat("/items/0", i+1) + `"}`
		spelled[i] = `{"$ref":"#/allOf/` + strings.Repeat("0", i+1) + `"}`
	}
	many := `{"properties":{` + listed(1_500, `"k%d":{"type":"string"}`) + `}}`
	for want, text := range map[string]string{
		"not schemas otherwise,":             `{"anyOf":[` + strings.Join(keys, ",") + `],` + strings.Repeat(`"items":{"0":{`, 40) + many[1:] + strings.Repeat(`}}`, 40),
		"not schemas otherwise, ":            `{"anyOf":[` + strings.Join(spelled, ",") + `],"allOf":[` + many + `]}`,
		"not schemas otherwise, ,":           `{"anyOf":[` + strings.NewReplacer("#", "#/additionalItems", "items", "allOf").Replace(strings.Join(keys, ",")) + `],"additionalItems":{` + strings.Repeat(`"allOf":{"0":{`, 40) + many[1:] + strings.Repeat(`}}`, 40) + `}`,
		"for so many $id":                    `{"$defs":{` + listed(1_500, `"k%[1]d":{"$id":"a%[1]d","$ref":"#/x%[1]d","$dynamicRef":"#/y%[1]d"}`) + `}}`,
		"elements that are alike":            `{"required":` + alike + `}`,
		"elements that are alike,":           `{"$schema":"http://json-schema.org/draft-04/schema#","enum":` + alike + `}`,
		"elements that are alike, ":          `{"dependentRequired":{"a":` + alike + `}}`,
		"names and identifiers":              `{"$id":"https://x/` + strings.Repeat("a", 100_000) + `/","$defs":{` + listed(300, `"k%[1]d":{"$id":"a%[1]d"}`) + `}}`,
		"not schemas otherwise":              `{"anyOf":[` + strings.Join(inner, ",") + `],"x":` + strings.Repeat(`{"not":`, 99) + `{"properties":{` + listed(1_500, `"k%d":{"type":"string"}`) + `}}` + strings.Repeat(`}`, 99) + `}`,
		"nested 128 times":                   `{"default":` + nots(1_900, `{"type":"x"}`) + `}`,
		"too many $dynamicAnchor":            `{"default":` + nots(60, `{"properties":{`+listed(1_700, `"k%d":{"type":"string"}`)+`,"k":{"type":"x"}}}`) + `}`,
		"too many $dynamicAnchor outside of": `{"default":[` + nots(100, `{"type":"x"}`) + `]}`,
		"true or false":                      `{"anyOf":[` + strings.Repeat(`true,`, 40_000) + `true]}`,
		"too long":                           `{"properties":{"` + strings.Repeat("x", 200_000) + `":{"properties":{` + listed(1_500, `"k%d":{"type":"string"}`) + `}}}}`,
	} {
		took := processorTime(t, func() {
			_, err := schema.Compile(json.RawMessage(text))
			require.ErrorContains(t, err, strings.TrimRight(want, ", "))
		})
		assert.Less(t, took, 20*time.Second, want)
		t.Log(want, took)
	}
	for _, text := range []string{
		`{"properties":{"$dynamicAnchor":{"type":"string"}}}`, `{"default":{"$dynamicAnchor":"a","type":"x"},"items":{"$dynamicAnchor":"n","type":"string"}}`,
		`{"anyOf":[` + strings.Repeat(`true,`, 7_999) + `true]}`, `{"items":{"properties":{` + listed(950, `"`+strings.Repeat("x", 200)+`%d":{"items":{"uniqueItems":true}}`) + `}}}`,
		strings.Repeat(`{"not":`, 127) + `{"type":"string"}` + strings.Repeat(`}`, 127),
		`{"$defs":{` + listed(400, `"k%[1]d":{"$id":"a%[1]d","$ref":"#/$defs/x%[1]d","$defs":{"x%[1]d":{"type":"string"}}}`) + `}}`,
		`{"anyOf":[` + repeated(40, `{"$ref":"#/allOf/0"}`) + `],"allOf":[` + many + `]}`,
	} {
		_, err := schema.Compile(json.RawMessage(text))
		require.NoError(t, err, "%.80s", text)
	}
}

// TestLongNamesTakeLittle: where a part is in a schema is not written out for each value of it.
func TestLongNamesTakeLittle(t *testing.T) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := schema.Compile(json.RawMessage(`{"` + strings.Repeat("x", 100_000) + `":[[],[],` + repeated(70_000, `1`) + `]}`))
	require.NoError(t, err)
	runtime.ReadMemStats(&after)
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(128<<20))
	t.Log((after.TotalAlloc - before.TotalAlloc) >> 20)
}

// TestWaitingEnds: a validation that finds all others at work waits no longer than it may.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	s, err := schema.Compile(json.RawMessage(`{"anyOf":[{"items":{"$ref":"#"},"maxItems":1},{"items":{"$ref":"#"},"minItems":1}],"type":"array"}`))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	data := []byte(strings.Repeat("[", 100) + "1" + strings.Repeat("]", 100))
	var all sync.WaitGroup
	var ended atomic.Int64
	for range 32 {
		all.Go(func() {
			steps := schema.MostSteps
			if errors.Is(s.Check(ctx, data, &steps), context.Canceled) {
				ended.Add(1)
				assert.Equal(t, schema.MostSteps, steps)
			}
		})
	}
	all.Wait()
	assert.Positive(t, ended.Load())
}
