package engine

import (
	"flag"
	"testing"

	"github.com/aviaryhq/aviary/test/leak"
)

func TestMain(m *testing.M) {
	// Most of the time the tests wait.
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err)
	}
	leak.Main(m.Run)
}
