package store

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/registry/model"
)

// heavy is a subscriber of n rules whose patterns have few bytes and many combinations.
func heavy(t *testing.T, name string, n int) *model.Subscriber {
	t.Helper()
	var branches []string
	for i := range 8 {
		branches = append(branches, fmt.Sprintf(`"o%d":{"$or":[{"a":[1]},{"b":[2]}]}`, i))
	}
	s := &model.Subscriber{Bus: "b", Name: name}
	for i := range n {
		s.Rules = append(s.Rules, model.Rule{Name: fmt.Sprintf("r%d", i), Pattern: json.RawMessage("{" + strings.Join(branches, ",") + "}")})
	}
	var f model.FaultList
	model.ValidateRules(&f, s)
	require.Empty(t, f)
	return s
}

func TestWeightOfRulesIsBounded(t *testing.T) {
	const one = 256 * 8 * 2 // combinations, fields in each, and an alternative for each field
	s := emptySnapshot()
	check := func(made, old *model.Subscriber) string {
		var f model.FaultList
		before := 0
		if old != nil {
			before = old.Weight()
		}
		checkWeight(&f, made.Weight(), before, s.weight)
		if len(f) == 0 {
			return ""
		}
		require.Len(t, f, 1)
		assert.Equal(t, "/rules", f[0].Pointer)
		return f[0].Problem
	}
	assert.Equal(t, 48*one, heavy(t, "s", 48).Weight())
	assert.Empty(t, check(heavy(t, "s", 48), nil))
	assert.Contains(t, check(heavy(t, "s", 49), nil), "the patterns have 200704 fields and alternatives")
	for i := range 10 {
		s.setSubscriber(heavy(t, fmt.Sprint("s", i), 48))
	}
	assert.Equal(t, 10*48*one, s.weight)
	assert.Empty(t, check(heavy(t, "s", 8), nil))
	assert.Contains(t, check(heavy(t, "s", 9), nil), "the patterns of all subscribers would have")
	assert.Empty(t, check(heavy(t, "s0", 48), s.Subscriber("b", "s0")))
	assert.Empty(t, check(heavy(t, "s0", 47), heavy(t, "s0", 60)), "fewer than before")
	s.removeSubscriber("b", "s1")
	assert.Equal(t, 9*48*one, s.weight)
	assert.Empty(t, check(heavy(t, "s", 48), nil))
}
