package ring_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/ring"
)

func elements(r *ring.Ring[int]) []int {
	all := []int{}
	for i := range r.Len() {
		all = append(all, *r.At(i))
	}
	return all
}

// TestRingIsAQueue compares with a slice.
func TestRingIsAQueue(t *testing.T) {
	var r ring.Ring[int]
	want := []int{}
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 10_000 {
		switch n := random.IntN(10); {
		case n < 4:
			r.Push(i)
			want = append(want, i)
		case n < 5:
			r.Push(i, i+1, i+2)
			want = append(want, i, i+1, i+2)
		case n < 8 && len(want) > 0:
			require.Equal(t, want[0], *r.Head())
			require.Equal(t, want[0], r.Pop())
			want = want[1:]
		case n < 9:
			n := random.IntN(len(want) + 1)
			r.Drop(n)
			want = want[n:]
		case len(want) > 0:
			r.DropLast()
			want = want[:len(want)-1]
		}
		require.Equal(t, want, elements(&r))
	}
	r.Clear()
	require.Zero(t, r.Len())
}

// TestRingKeepsItsArray: a queue that is never long allocates once.
func TestRingKeepsItsArray(t *testing.T) {
	var r ring.Ring[*int]
	r.Push(new(int))
	require.Zero(t, testing.AllocsPerRun(1000, func() {
		r.Push(nil)
		r.Pop()
	}))
}
