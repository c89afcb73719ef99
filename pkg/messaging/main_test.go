package messaging_test

import (
	"os"
	"runtime"
	"testing"

	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/parallel"
)

// testsPerProcessor is how many tests run at a time on each processor: they wait most of the time.
const testsPerProcessor = 16

// soakVariable set to anything makes tests run in their long forms.
const soakVariable = "AVIARY_MESSAGING_SOAK"

func soak() bool { return os.Getenv(soakVariable) != "" }

func TestMain(m *testing.M) {
	if os.Getenv(consumesBacklog) != "" {
		if err := consumeBacklog(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
			panic(err)
		}
		return
	}
	parallel.Tests(testsPerProcessor * runtime.GOMAXPROCS(0))
	leak.Main(func() int {
		defer faulty.end()
		return m.Run()
	})
}
