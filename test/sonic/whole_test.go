package sonic

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The randomised test of the whole system. AVIARY_WHOLE_SEED is the seed of a run: of its faults
// and of what its writers send. What comes of a seed depends on the scheduler, too.
// AVIARY_WHOLE_SECONDS is for how long faults happen, AVIARY_WHOLE_ZONES how many zones there are.
const (
	wholeSeed    = "AVIARY_WHOLE_SEED"
	wholeSeconds = "AVIARY_WHOLE_SECONDS"
	wholeZones   = "AVIARY_WHOLE_ZONES"
)

// An ordinary run is short. A long one is asked for by AVIARY_WHOLE_SECONDS.
const (
	shortRun   = 30 * time.Second
	shortZones = 2
	longZones  = 3
	// calmEvery is after how long writers pause and zones are compared: differences are soon
	// overwritten.
	calmEvery = 90 * time.Second
)

// number is what a variable says, or other.
func number(t testing.TB, variable string, other uint64) uint64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return other
	}
	n, err := strconv.ParseUint(text, 10, 64)
	require.NoError(t, err, variable)
	return n
}

// TestZonesStayEqual has writers in all zones at the same time while processes are killed and
// networks cut, and then compares everything: what the zones hold with each other and with what was
// acknowledged, and what the topics hold with both.
func TestZonesStayEqual(t *testing.T) {
	seed := number(t, wholeSeed, rand.Uint64())
	seconds := number(t, wholeSeconds, 0)
	n, lasting := uint64(longZones), time.Duration(seconds)*time.Second
	if seconds == 0 {
		n, lasting = shortZones, shortRun
	}
	n = number(t, wholeZones, n)
	text := fmt.Sprintf("%s=%d %s=%d %s=%d", wholeSeed, seed, wholeSeconds, int(lasting.Seconds()), wholeZones, n)
	t.Log(text)
	w := newWhole(t, seed, int(n))
	defer func() { t.Logf("%s\n%s\n%s", text, strings.Join(w.events, "\n"), w.ledger) }()
	w.write()
	deck := newDeck(w.r, seconds > 0)
	calm := time.Now()
	for end := time.Now().Add(lasting); time.Now().Before(end) && !t.Failed(); {
		w.step(deck.next())
		if seconds > 0 && time.Since(calm) > calmEvery {
			w.pause()
			w.awaitAll()
			w.compare()
			w.resume()
			calm = time.Now()
		}
	}
	w.calm()
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
