package wire_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

func TestConfigurationsThatDiffer(t *testing.T) {
	a := wire.Config(map[string][]string{"zones": {"a", "b"}, "conflicts": {"lww", "lww x"}})
	assert.Equal(t, a, wire.Config(map[string][]string{"zones": {"b", "a"}, "conflicts": {"lww x", "lww"}}), "the order does not matter")
	assert.Regexp(t, `^conflicts=[0-9a-f]{8} zones=[0-9a-f]{8}$`, a)
	assert.Empty(t, wire.Differing(a, a))
	b := wire.Config(map[string][]string{"zones": {"a", "b", "c"}, "conflicts": {"lww", "lww x"}})
	assert.Equal(t, []string{"zones"}, wire.Differing(a, b))
	assert.Equal(t, []string{"conflicts", "zones"}, wire.Differing(a, wire.Config(map[string][]string{"zones": nil, "conflicts": nil})))
	assert.Empty(t, wire.Differing(a, ""), "it tells nothing")
	assert.Empty(t, wire.Differing(a, "later=1 "+a), "it tells more")
}
