package sonic

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aviaryhq/aviary/test/variable"
)

// The randomised test of the whole system. AVIARY_SONIC_SEED is the seed of a run: of its faults
// and of what its writers send. What comes of a seed depends on the scheduler, too.
// AVIARY_SONIC_SECONDS is for how long faults happen, AVIARY_SONIC_ZONES how many zones there are.
const (
	randomSeed    = "AVIARY_SONIC_SEED"
	randomSeconds = "AVIARY_SONIC_SECONDS"
	randomZones   = "AVIARY_SONIC_ZONES"
)

// An ordinary run is short, one deck of faults, and has the same seed always. A long one is asked
// for by AVIARY_SONIC_SECONDS, and has a seed of its own.
const (
	shortSeed  = 1
	shortZones = 2
	longZones  = 3
	// compareEvery is after how long writers pause and zones are compared: differences are soon
	// overwritten.
	compareEvery = 90 * time.Second
)

// rounds returns how many rounds of faults a test makes: few, or many in a long run.
func rounds(t testing.TB, few, many int) int {
	t.Helper()
	if variable.Number(t, randomSeconds, 0) > 0 {
		return many
	}
	return few
}

// TestZonesStayEqual has writers in all zones at the same time while processes are killed and
// networks cut, and then compares everything: what the zones hold with each other and with what was
// acknowledged, and what the topics hold with both.
func TestZonesStayEqual(t *testing.T) {
	t.Parallel()
	seconds := variable.Number(t, randomSeconds, 0)
	n, seed := uint64(longZones), rand.Uint64()
	if seconds == 0 {
		n, seed = shortZones, shortSeed
	}
	n, seed = variable.Number(t, randomZones, n), variable.Number(t, randomSeed, seed)
	text := fmt.Sprintf("%s=%d %s=%d %s=%d", randomSeed, seed, randomSeconds, seconds, randomZones, n)
	t.Log(text)
	w := newRandomRun(t, seed, slices.Repeat([]startRedis{single}, int(n)), int(n), seconds > 0)
	defer func() { t.Logf("%s\n%s\n%s", text, strings.Join(w.events, "\n"), w.ledger) }()
	w.write()
	deck := newDeck(w.r, w.long)
	compared := time.Now()
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	for first := true; (first || time.Now().Before(end) || !w.long && len(deck.cards) > 0) && !t.Failed(); first = false {
		w.step(deck.next())
		if w.long && time.Since(compared) > compareEvery {
			w.pause()
			w.awaitAll()
			w.compare()
			w.resume()
			compared = time.Now()
		}
	}
	w.endFaults()
	w.run(time.Second) // behind the last fault
	w.stopWriters()
	w.awaitAll()
	w.lagIsZero()
	w.compare()
	w.acknowledged()
	w.appliedOnce()
	w.quiet()
	w.topics()
	w.checked()
	w.event("messages that the last processes have dropped: %v; faults: %v", w.duplicates(), w.counts)
}
