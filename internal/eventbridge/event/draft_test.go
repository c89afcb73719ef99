package event

import (
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestEscapesTakeNoMemoryBeforeTheyAreBounded: what is decoded is larger than any event may be.
func TestEscapesTakeNoMemoryBeforeTheyAreBounded(t *testing.T) {
	const most = 256 << 10
	large := strings.Repeat("AAAA", 1<<20)
	for reason, member := range map[Reason]string{TooLarge: `"data_base64":"\/` + large + `"`, BadAttribute: `"x":"\/` + large + `"`} {
		body := []byte(`{"specversion":"1.0","id":"1","source":"/s","type":"t",` + member + `}`)
		var p Parser
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := p.Structured(body, Options{MaxBytes: most})
		runtime.ReadMemStats(&after)
		fault := (*Error)(nil)
		require.ErrorAs(t, err, &fault)
		assert.Equal(t, reason, fault.Reason)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(most))
	}
}
