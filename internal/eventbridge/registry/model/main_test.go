package model_test

import (
	"testing"

	"github.com/aviaryhq/aviary/test/leak"
)

func TestMain(m *testing.M) { leak.Main(m.Run) }
