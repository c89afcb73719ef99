package messaging_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/aviaryhq/aviary/test/leak"
)

// testsAtOnce is how many tests run at a time on each processor: they wait most of the time.
const testsAtOnce = 8

// soakVariable set to anything makes tests run in their long forms.
const soakVariable = "AVIARY_MESSAGING_SOAK"

func soak() bool { return os.Getenv(soakVariable) != "" }

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		if err := consumeBacklog(url); err != nil {
			panic(err)
		}
		return
	}
	flag.Parse()
	named := false // -parallel of the command line
	flag.Visit(func(f *flag.Flag) { named = named || f.Name == "test.parallel" })
	if !named {
		if err := flag.Set("test.parallel", strconv.Itoa(testsAtOnce*runtime.GOMAXPROCS(0))); err != nil {
			panic(err)
		}
	}
	leak.Main(tests{m})
}

// tests are the package's, with the end of what they share.
type tests struct{ *testing.M }

func (t tests) Run() int {
	defer faulty.end()
	return t.M.Run()
}
