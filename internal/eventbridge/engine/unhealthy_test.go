package engine

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The log repeats the current errors: they are no longer with more buses, and in the same words.
func TestErrorOfManyBusesIsShort(t *testing.T) {
	e := &Engine{buses: map[string]*bus{"well": {}}}
	assert.NoError(t, e.Unhealthy())
	for i := range 100 {
		e.buses[fmt.Sprintf("b%02d", i)] = &bus{unhealthy: errors.New("unavailable")}
	}
	for range 20 {
		assert.EqualError(t, e.Unhealthy(), "bus b00: unavailable\nbus b01: unavailable\nbus b02: unavailable\nand 97 buses more")
	}
}
