// Package soak sets the length of Eventbridge's fault tests, short or long, and their seeds.
package soak

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/variable"
)

// AVIARY_EVENTBRIDGE_SECONDS asks for the long form: for how long faults happen in a test that has
// nothing else to bound them. Others have a part of that time, or more rounds.
// AVIARY_EVENTBRIDGE_SEED is the seed of what is sent and of faults; the scheduler decides, too.
const (
	seconds = "AVIARY_EVENTBRIDGE_SECONDS"
	seedOf  = "AVIARY_EVENTBRIDGE_SEED"
)

// Long reports whether the long form is asked for.
func Long(t testing.TB) bool {
	t.Helper()
	return variable.Number(t, seconds, 0) > 0
}

// Seed is that of the test, which is in its log: the same in each run of the short form, and a
// fresh one in the long form.
func Seed(t testing.TB) uint64 {
	t.Helper()
	s := uint64(1)
	if Long(t) {
		s = rand.Uint64()
	}
	s = variable.Number(t, seedOf, s)
	t.Logf("%s=%d %s=%d", seedOf, s, seconds, variable.Number(t, seconds, 0))
	return s
}

// Lasting is short, or, of the long form, what long says of its seconds.
func Lasting(t testing.TB, short time.Duration, long func(all time.Duration) time.Duration) time.Duration {
	t.Helper()
	if n := variable.Number(t, seconds, 0); n > 0 {
		return long(time.Duration(n) * time.Second)
	}
	return short
}

// Rounds is how many rounds of faults there are in the short and in the long form.
func Rounds(t testing.TB, short, long int) int {
	t.Helper()
	if Long(t) {
		return long
	}
	return short
}
