package load

import (
	"testing"
	"time"
)

// TestStagesWithoutTheWarmUp has a message that was due in the warm-up and received after it: the
// total does not count it, so the stages must not either.
func TestStagesWithoutTheWarmUp(t *testing.T) {
	ms := func(n int64) int64 { return n * int64(time.Millisecond) }
	tap := &tap{messages: map[uint64]*message{
		1: {due: ms(1), sent: ms(2), stored: ms(3), received: ms(900)},
		2: {due: ms(500), sent: ms(501), stored: ms(503), received: ms(506)},
	}}
	result := &Result{Figures: map[string]float64{"e2e_mean_ms": 6}, Histograms: map[string]string{}}
	if err := tap.results(time.Unix(0, ms(400)), result); err != nil {
		t.Fatal(err)
	}
	if n := result.Figures["stages_messages"]; n != 1 {
		t.Errorf("%g messages are counted", n)
	}
}
