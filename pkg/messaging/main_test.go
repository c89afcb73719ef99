package messaging_test

import (
	"testing"

	"github.com/aviaryhq/aviary/test/leak"
)

func TestMain(m *testing.M) { leak.Main(tests{m}) }

// tests are the package's, with the end of what they share.
type tests struct{ *testing.M }

func (t tests) Run() int {
	defer faulty.end()
	return t.M.Run()
}
