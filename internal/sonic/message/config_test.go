package message_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

func TestConfigurationsThatDiffer(t *testing.T) {
	a := message.Config(map[string][]string{"zones": {"a", "b"}, "conflicts": {"lww", "lww x"}})
	assert.Equal(t, a, message.Config(map[string][]string{"zones": {"b", "a"}, "conflicts": {"lww x", "lww"}}), "the order does not matter")
	assert.Regexp(t, `^conflicts=[0-9a-f]{8} zones=[0-9a-f]{8}$`, a)
	assert.Empty(t, message.Differing(a, a))
	b := message.Config(map[string][]string{"zones": {"a", "b", "c"}, "conflicts": {"lww", "lww x"}})
	assert.Equal(t, []string{"zones"}, message.Differing(a, b))
	assert.Equal(t, []string{"conflicts", "zones"}, message.Differing(a, message.Config(map[string][]string{"zones": nil, "conflicts": nil})))
	assert.Empty(t, message.Differing(a, ""), "it tells nothing")
	assert.Empty(t, message.Differing(a, "later=1 "+a), "it tells more")
}
