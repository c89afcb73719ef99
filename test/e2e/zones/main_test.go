// Package zones runs four zones, each with a Pulsar cluster, a Redis and a Sonic, one also with
// Pigeonhole and Eventbridge, and makes them fail. After each step it counts in each zone the
// messages and writes that were acknowledged. "make zones" runs it; otherwise only the counting is
// tested.
package zones

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// secondsVariable asks for the run: for how many seconds a zone is cut off. fromVariable is a
// revision of the repository from which the first version is built; empty: that of the work tree.
const (
	secondsVariable = "AVIARY_ZONES_SECONDS"
	fromVariable    = "AVIARY_ZONES_FROM"
)

// settleLimit is how long zones may take to become equal. A replicator of Pulsar waits up to a
// minute between two attempts to connect.
const settleLimit = 5 * time.Minute

// silent is a logger of clients: that nobody listens while a zone is lost is no news.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(silent{})
	if os.Getenv(secondsVariable) == "" {
		fmt.Fprintln(os.Stderr, "four zones: make zones runs them")
		flag.Parse()
		if err := flag.Set("test.skip", "^TestFourZones$"); err != nil {
			panic(err)
		}
	}
	m.Run()
}

// cutLasts is how long a zone is cut off.
func cutLasts(t *testing.T) time.Duration {
	t.Helper()
	n, err := strconv.ParseUint(os.Getenv(secondsVariable), 10, 32)
	if err != nil {
		t.Fatalf("%s: %v", secondsVariable, err)
	}
	return time.Duration(n) * time.Second
}
