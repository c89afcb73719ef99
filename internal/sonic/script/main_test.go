package script_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/sonic/script"
	"github.com/aviaryhq/aviary/test/await"
	"github.com/aviaryhq/aviary/test/parallel"
)

func TestMain(m *testing.M) {
	parallel.Tests(8)
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

// stateKey returns the name of a state key that is not among keys.
func stateKey(keys script.Keys, name string) string {
	return strings.TrimSuffix(keys.Outbox, "out") + name
}
