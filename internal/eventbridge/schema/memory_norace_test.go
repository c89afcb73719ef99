//go:build !race

// The race detector takes more memory.

package schema_test

import (
	"encoding/json"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

// TestNamesTakeLittle: of names that are wrong nothing is kept that alternatives of alternatives
// had to say of each.
func TestNamesTakeLittle(t *testing.T) {
	s, err := schema.Compile(json.RawMessage(`{"propertyNames":{"anyOf":[` + repeated(100, `{"$ref":"#/$defs/a"}`) + `]},"$defs":{"a":{"anyOf":[` + repeated(140, `{"type":"number"}`) + `]}}}`))
	require.NoError(t, err)
	data := []byte(`{` + listed(100, `"k%d":1`) + `}`)
	const most = 32 << 20
	assert.Less(t, heldBy(most, func() { err = s.Validate(data) }), uint64(most))
	require.ErrorContains(t, err, "too large to say where")
}

// TestTheStackIsBounded: what parts that lead to each other take is in WorkingBytes.
func TestTheStackIsBounded(t *testing.T) {
	chain := make([]string, 70)
	for i := range chain {
		chain[i] = fmt.Sprintf(`"c%d":{"$ref":"#/$defs/c%d"}`, i, i+1)
	}
	s, err := schema.Compile(json.RawMessage(`{"$ref":"#/$defs/c0","$defs":{"c70":{"items":{"$ref":"#/$defs/c0"}},` + strings.Join(chain, ",") + `}}`))
	require.NoError(t, err)
	data := []byte(strings.Repeat("[", 100) + strings.Repeat("]", 100))
	took := make(chan int64)
	go func() { // with a stack of its own, which stays as large as it was until the next collection
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		assert.NoError(t, s.Validate(data))
		runtime.ReadMemStats(&after)
		took <- int64(after.StackInuse) - int64(before.StackInuse) // less than nothing, if a collection freed the stacks of others
	}()
	assert.Less(t, <-took, int64(2*s.WorkingBytes(data))) // stacks grow twofold
}

// TestMemoryIsBounded: invalid data takes no more than WorkingBytes says, however deep and often it
// is wrong.
func TestMemoryIsBounded(t *testing.T) {
	const tree = `{"$defs":{"n":{"type":["array","string"],"items":{"$ref":"#/$defs/n"}}},"$ref":"#/$defs/n"}`
	wide := `[` + strings.Repeat(`1,`, 20_000) + `1]`
	for name, test := range map[string]struct{ schema, data string }{
		"wide":         {tree, wide},
		"deep":         {tree, strings.Repeat("[", 120) + wide + strings.Repeat("]", 120)},
		"alternatives": {`{"items":{"anyOf":[{"type":"string"},{"type":"null"},{"minimum":2},{"const":"x"},{"type":"object"},{"enum":["a","b"]}]}}`, wide},
		"small":        {tree, `[[[1]]]`},
	} {
		s, err := schema.Compile(json.RawMessage(test.schema))
		require.NoError(t, err, name)
		data := []byte(test.data)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err = s.Validate(data)
		runtime.ReadMemStats(&after)
		require.Error(t, err, name)
		assert.Equal(t, name != "small", strings.Contains(err.Error(), "too large to say where"), "%s: %v", name, err)
		// What is taken in all, of which the collector may have had much.
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4*s.WorkingBytes(data)+64<<10), name)
	}
}
