package batch

import (
	"maps"
	"math"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestSymbolTableTakesAnyTexts, finds them all again, and forgets them.
func TestSymbolTableTakesAnyTexts(t *testing.T) {
	b := new(Batch)
	for round := range 3 {
		b.Elements.Limit = math.MaxInt
		refs := map[string]uint32{}
		for i := range 5000 * (3 - round) {
			text := strconv.Itoa(i)
			ref, err := b.Intern(text)
			require.NoError(t, err)
			refs[text] = ref
		}
		require.Len(t, slices.Compact(slices.Sorted(maps.Values(refs))), len(refs))
		for text, want := range refs {
			ref, err := b.Intern(text)
			require.NoError(t, err)
			require.Equal(t, want, ref)
			require.Equal(t, text, b.Symbols[ref])
		}
		b.Reset()
	}
}
