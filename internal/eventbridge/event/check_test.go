package event_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/internal/eventbridge/event"
)

func TestCheck(t *testing.T) {
	for _, good := range []string{`{}`, ` {"a":{"b":[1,"x",null,{"a":2}]}} `, `[]`, `"x"`, `1e3`} {
		require.NoError(t, event.Check([]byte(good)), good)
	}
	for bad, want := range map[string]string{
		``:                               "ends too early",
		`{"a":1,"a":2}`:                  "twice",
		`{"x":[{"a":1,"\u0061":2}]}`:     "twice",
		`{"a":1} {}`:                     "unexpected",
		"\"\xff\"":                       "UTF-8",
		strings.Repeat("[", 1_000_000):   "deep",
		`{"a":` + strings.Repeat("9", 2): "ends too early",
	} {
		require.ErrorContains(t, event.Check([]byte(bad)), want, bad[:min(len(bad), 40)])
	}
}
