package sonic

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestCounterKeys: the longest prefix counts, in whatever order they are given.
func TestCounterKeys(t *testing.T) {
	t.Parallel()
	of := func(conflicts ...Conflict) func([]byte) bool { return Config{Conflicts: conflicts}.counter() }
	assert.Nil(t, of(Conflict{"", policyLWW}, Conflict{"a", policyNone}))
	is := of(Conflict{"", policyLWW}, Conflict{"n:", policyCounter}, Conflict{"n:x:", policyNone})
	for key, want := range map[string]bool{"": false, "a": false, "n": false, "n:": true, "n:1": true, "n:x": true, "n:x:1": false} {
		assert.Equal(t, want, is([]byte(key)), key)
	}
	assert.True(t, of(Conflict{"a", policyLWW}, Conflict{"", policyCounter})([]byte("b")))
}
