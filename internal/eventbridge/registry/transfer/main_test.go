package transfer_test

import (
	"testing"

	"github.com/aviaryhq/aviary/test/leak"
	"github.com/aviaryhq/aviary/test/parallel"
)

func TestMain(m *testing.M) {
	parallel.Tests(8)
	leak.Main(m.Run)
}
