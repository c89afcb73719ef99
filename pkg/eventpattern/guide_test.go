package eventpattern_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestExamplesOfTheGuide: each pattern in the guide matches the events below it that it should, and
// no others; by the naive evaluator too.
func TestExamplesOfTheGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/patterns.md")
	require.NoError(t, err)
	pattern, patterns, events := "", 0, 0
	for block := range strings.SplitSeq(string(guide), "\n```") {
		head, body, _ := strings.Cut(block, "\n")
		switch head {
		case "pattern":
			pattern = body
			patterns++
		case "match", "no match":
			e, err := parse(t, pattern).Explain([]byte(body))
			assert.NoError(t, err, body)
			assert.Equal(t, head == "match", e.Match, "%s\n%s", pattern, body)
			slow, err := naive([]byte(pattern), []byte(body))
			assert.NoError(t, err, body)
			assert.Equal(t, head == "match", slow, "%s\n%s", pattern, body)
			events++
		}
	}
	assert.Greater(t, patterns, 10)
	assert.Greater(t, events, 2*patterns)
}
