package script_test

import (
	"flag"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/test/await"
)

// sideBySide is how many tests run at the same time unless -parallel says it: they mostly wait, for
// their Redises and for expiries.
const sideBySide = "8"

func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", sideBySide); err != nil { // the command line is read later
		panic(err)
	}
	os.Exit(m.Run())
}

// before calls try with a time that is soon, until it reports that it did all that has to be done
// before that time: each time with one that is further away. On a busy machine the first one may be
// too early.
func before(t testing.TB, in time.Duration, try func(at time.Time) (inTime bool)) {
	t.Helper()
	for !try(time.Now().Add(in)) {
		in *= 2
		require.Less(t, in, await.Patience, "it is never done in time")
	}
}

// sleepPast waits until a time has passed by the clock of this machine, which is that of the
// Redises: they expire keys by it.
func sleepPast(at time.Time) { time.Sleep(time.Until(at.Add(2 * time.Millisecond))) }

// tick waits for the next millisecond: what is written then has a newer version than what was
// written before, in whatever zone.
func tick() {
	for now := time.Now().UnixMilli(); time.Now().UnixMilli() == now; {
		time.Sleep(100 * time.Microsecond)
	}
}
