package engine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The log repeats what is the matter: it is no longer with more buses, and in the same words.
func TestTroubleOfManyBusesIsShort(t *testing.T) {
	e := &Engine{buses: map[string]*bus{"well": {}}}
	assert.NoError(t, e.Trouble())
	for i := range 100 {
		e.buses[fmt.Sprintf("b%02d", i)] = &bus{trouble: errors.New("away")}
	}
	for range 20 {
		assert.EqualError(t, e.Trouble(), "bus b00: away\nbus b01: away\nbus b02: away\nand 97 buses more")
	}
}
