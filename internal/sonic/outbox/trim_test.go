package outbox

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/internal/sonic/message"
)

func TestTheTrimmerKnowsHowManyPublishedEffectsAreStored(t *testing.T) {
	t.Parallel()
	trim := newTrimmer(nil)
	trim.trimTo(message.ID{Ms: 1}, -1)
	assert.EqualValues(t, -1, trim.published, "not known")
	trim.trimTo(message.ID{Ms: 2}, 7)
	trim.trimTo(message.ID{Ms: 3}, -1)
	assert.EqualValues(t, 7, trim.published)
	assert.Equal(t, message.ID{Ms: 3}, trim.to)
}
