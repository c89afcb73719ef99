package outbox

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/wire"
)

func TestTheTrimmerKnowsHowManyPublishedEffectsAreStored(t *testing.T) {
	t.Parallel()
	trim := newTrimmer(nil)
	trim.trimTo(wire.ID{Ms: 1}, -1)
	assert.EqualValues(t, -1, trim.published, "not known")
	trim.trimTo(wire.ID{Ms: 2}, 7)
	trim.trimTo(wire.ID{Ms: 3}, -1)
	assert.EqualValues(t, 7, trim.published)
	assert.Equal(t, wire.ID{Ms: 3}, trim.to)
}
