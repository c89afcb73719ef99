//go:build !race

package eventpattern_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// TestTimeOfTheWorstEvents: events of the accepted size against ten thousand rules, both such that
// as much as possible is compared. Without a bound some take minutes.
func TestTimeOfTheWorstEvents(t *testing.T) {
	t.Parallel()
	const rules = 10_000
	many := func(n int, text string) string { return strings.TrimSuffix(strings.Repeat(text+",", n), ",") }
	for _, test := range []struct{ name, rule, event string }{
		{"numbers that are in all ranges", `{"a":[{"numeric":[">",-%d]}]}`, `{"a":[` + listed(60_000, "%d") + `]}`},
		{"numbers in all ranges, and another field", `{"a":[{"numeric":[">",-%d]}],"b":[{"numeric":["<",0]}]}`, `{"a":[` + many(30_000, "1") + `],"b":[` + many(30_000, "1") + `]}`},
		{"texts, and wildcards", `{"a":["a%d"],"b":[{"wildcard":"*x*yz*z"}]}`, `{"a":[` + listed(rules, `"a%d"`) + `],"b":[` + many(3_000, `"`+strings.Repeat("xy", 150)+`z"`) + `]}`},
		{"many alternatives of another field", `{"a":["a"],"b":[` + listed(150, `{"prefix":"%d"}`) + `,"n%d"]}`, `{"a":"a","b":[` + listed(30_000, `"x%d"`) + `]}`},
		{"a long list of another field", `{"a":["a"],"b":[` + listed(150, `"%d"`) + `,"n%d"]}`, `{"a":"a","b":[` + listed(30_000, `"x%d"`) + `]}`},
		{"many exclusions", `{"a":["a"],"b":[{"anything-but":[` + listed(150, `"%d"`) + `,"n%d"]}]}`, `{"a":"a","b":[` + many(60_000, `"1"`) + `]}`},
		{"long texts without regard to case", `{"a":["a%d"],"b":[{"equals-ignore-case":"` + strings.Repeat("x", 100) + `"}]}`, `{"a":[` + listed(rules, `"a%d"`) + `],"b":[` + many(2000, `"`+strings.Repeat("X", 99)+`"`) + `]}`},
		{"elements of a list", `{"l":{"a":[{"numeric":[">",-%d]}],"b":["b"]}}`, `{"l":[` + many(20_000, `{"a":1,"b":2}`) + `]}`},
		{"elements with a field that may be missing", `{"l":{"a":[{"numeric":[">",-%d]}],"b":[{"exists":false}]}}`, `{"l":[` + many(20_000, `{"a":1,"b":2}`) + `]}`},
		{"elements without any of many fields", `{"l":{` + listed(30, `"f%d":["x",{"exists":false}]`) + `}}`, `{"l":[` + many(60_000, `{}`) + `]}`},
		{"anything-but of all", `{"a":[{"anything-but":["n%d"]}],"b":["b"]}`, `{"a":[` + many(30_000, "1") + `],"b":[` + many(30_000, "1") + `]}`},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.Less(t, len(test.event), 1<<20)
			x := eventpattern.NewIndex[int]()
			x.Update(func(c *eventpattern.Change[int]) {
				for i := range rules {
					text := test.rule
					if strings.Contains(text, "%d") {
						text = fmt.Sprintf(text, i)
					}
					c.Set(i, parse(t, text))
				}
			})
			var s eventpattern.Scratch
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			began := threadTime(t)
			ids, err := x.Match(&s, nil, []byte(test.event))
			took := threadTime(t) - began
			t.Log(took)
			assert.Empty(t, ids)
			var refused *eventpattern.EventError
			require.ErrorAs(t, err, &refused)
			assert.Equal(t, eventpattern.TooMuchWork, refused.Reason)
			assert.Less(t, took, 10*time.Second)
		})
	}
}

// TestTooMuchWork: an event of which thousands of values meet thousands of alternatives is refused,
// and the next one is not.
func TestTooMuchWork(t *testing.T) {
	t.Parallel()
	alternatives := listed(9_000, `{"prefix":"x%d-"}`)
	pattern := `{"a":["x"],"b":[` + alternatives + `]}`
	much := []byte(`{"a":"x","b":[` + listed(12_000, `"x%d"`) + `]}`)
	x := indexOf(t, pattern)
	var s eventpattern.Scratch
	ids, err := x.Match(&s, []string{"before"}, much)
	var refused *eventpattern.EventError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, eventpattern.EventError{Reason: eventpattern.TooMuchWork}, *refused)
	assert.Equal(t, []string{"before"}, ids)
	ids, err = x.Match(&s, nil, []byte(`{"a":"x","b":["y","x7-"]}`))
	require.NoError(t, err)
	assert.Equal(t, []string{pattern}, ids)
	_, err = parse(t, pattern).Explain(much)
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, eventpattern.TooMuchWork, refused.Reason)
	// It takes much only to explain: what the index looks up is compared here.
	_, err = parse(t, `{"b":[`+alternatives+`]}`).Explain(much)
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, eventpattern.TooMuchWork, refused.Reason)
}
