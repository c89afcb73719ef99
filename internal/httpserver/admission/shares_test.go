package admission

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestTheTenantWithTheMostEntriesGivesWay(t *testing.T) {
	s := NewShares(10)
	add := func(tenant string) {
		if s.Full() {
			s.Add(s.EvictFrom(tenant), -1)
		}
		s.Add(tenant, 1)
	}
	for range 30 {
		add("large")
	}
	assert.Equal(t, map[string]int{"large": 10}, s.held)
	for range 3 {
		add("small")
	}
	for range 30 {
		add("large")
	}
	assert.Equal(t, map[string]int{"large": 7, "small": 3}, s.held, "a tenant keeps what is below its share")
	for range 30 {
		add("small")
	}
	assert.Equal(t, map[string]int{"large": 5, "small": 5}, s.held)
	for i := range 1000 {
		add(fmt.Sprint("one of many ", i%20))
		assert.Equal(t, 10, s.total)
	}
	for tenant, n := range s.held {
		assert.LessOrEqual(t, n, 2, tenant)
	}
}

func TestSharesOfATableForNothing(t *testing.T) {
	s := NewShares(0)
	assert.True(t, s.Full())
	assert.Equal(t, "a", s.EvictFrom("a"))
}
