package record

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestSlabsFillTheAllocatorsClass(t *testing.T) {
	const class = 8 << 10
	require.LessOrEqual(t, slabDeliveries*unsafe.Sizeof(Delivery{}), uintptr(class-8), "a header of 8 bytes stands before it")
	require.Greater(t, (slabDeliveries+1)*unsafe.Sizeof(Delivery{}), uintptr(class-8))
}
