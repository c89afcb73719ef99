package batch

import (
	"math"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestInternReturnsReferencesOfTheTexts, also after a reset, and finds most texts again.
func TestInternReturnsReferencesOfTheTexts(t *testing.T) {
	b := new(Batch)
	for round := range 3 {
		b.Elements.Limit = math.MaxInt
		n := 5000 * (3 - round)
		require.NoError(t, b.BeginSymbols(4*n))
		for range 2 {
			for i := range n {
				text := strconv.Itoa(i)
				ref, err := b.Intern(text)
				require.NoError(t, err)
				require.Equal(t, text, b.Symbols[ref])
				again, err := b.Intern(text)
				require.NoError(t, err)
				require.Equal(t, ref, again)
			}
		}
		require.Less(t, len(b.Symbols), 3*n/2)
		b.Reset()
	}
}
