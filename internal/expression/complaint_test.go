package expression_test

import (
	"testing"

	"github.com/google/cel-go/cel"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/expression"
)

// What is wrong with an expression is said in one line, at its place, in words of people and not of
// the parser.
func TestComplaintsAreOneLine(t *testing.T) {
	for source, want := range map[string]string{
		`topic ==`:                      "does not compile: column 9: it ends too early",
		`topic == 'a' && jsn.x == 1`:    "does not compile: column 17: there is no jsn; the variables are json, topic",
		"topic == 'a' &&\n  jsn.x == 1": "does not compile: line 2, column 3: there is no jsn; the variables are json, topic",
		`topic == 1`:                    "does not compile: column 7: found no matching overload for '_==_' applied to '(string, int)'",
		`topic = 'a'`:                   "does not compile: column 7: unexpected = (equal is ==); column 9: unexpected 'a'",
	} {
		env, err := expression.NewEnv(cel.Variable("topic", cel.StringType), cel.Variable("json", cel.DynType))
		require.NoError(t, err)
		_, err = expression.Compile(env, source, "anything", nil)
		assert.EqualError(t, err, want, source)
	}
}
