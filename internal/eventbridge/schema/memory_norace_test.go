//go:build !race

// The race detector takes more memory.

package schema_test

import (
	"encoding/json"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/schema"
)

// TestMemoryIsBounded: invalid data takes no more than WorkingBytes says, however deep and often it is wrong.
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
