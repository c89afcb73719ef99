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

// allocated returns how many bytes f takes altogether.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// listed is n members or elements made of format, each with its number.
func listed(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(parts, ",")
}

// A pattern that is refused must not have taken much before: anybody who may test one could
// otherwise end the process.
func TestRefusedPatternsTakeLittle(t *testing.T) {
	for _, test := range []struct{ name, pattern, reason string }{
		{
			"a long key above many fields", `{"` + strings.Repeat("k", 100<<10) + `":{` + listed(10_000, `"a%d":[1]`) + `}}`,
			"the paths of all fields together are too long",
		},
		{
			"many fields beside a long $or", `{` + listed(15_000, `"a%d":[1]`) + `,"$or":[` + listed(1000, `{"z":[%d]}`) + `]}`,
			"too many combinations",
		},
		{
			"many alternatives beside a long $or", `{"a":[` + listed(20_000, `"%d"`) + `],"$or":[` + listed(1000, `{"z":[{"exists":false},%d]}`) + `]}`,
			"too many combinations",
		},
		{
			"many exclusions beside a long $or", `{"a":[{"anything-but":[` + listed(20_000, `"%d"`) + `]}],"$or":[` + listed(1000, `{"z":[{"exists":false},%d]}`) + `]}`,
			"too many combinations",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			require.LessOrEqual(t, len(test.pattern), eventpattern.MaxPatternBytes)
			var err error
			assert.Less(t, allocated(func() { _, err = eventpattern.Parse([]byte(test.pattern)) }), uint64(64<<20))
			var refused *eventpattern.Error
			require.ErrorAs(t, err, &refused)
			assert.Contains(t, refused.Reason, test.reason)
		})
	}
}

// What a match takes must not be the product of how often an event has a piece of text and how many
// rules look for it.
func TestRepeatedPiecesTakeLittle(t *testing.T) {
	for _, test := range []struct{ piece, pattern string }{
		{"/img", `{"a":[{"wildcard":"*/img*n%d"}]}`},
		{"ab", `{"a":[{"wildcard":"*ab*%d"}]}`},
		{"x", `{"a":[{"wildcard":"*x*%d"}]}`},
		{"/img", `{"a":[{"anything-but":{"wildcard":"*/img*n%d"}}]}`},
	} {
		t.Run(test.pattern, func(t *testing.T) {
			x := eventpattern.NewIndex[int]()
			x.Update(func(c *eventpattern.Change[int]) {
				for i := range 500 {
					p, err := eventpattern.Parse([]byte(fmt.Sprintf(test.pattern, i%10)))
					require.NoError(t, err)
					c.Set(i, p)
				}
			})
			event := []byte(`{"a":"` + strings.Repeat(test.piece, (256<<10)/len(test.piece)) + ` n3"}`)
			var s eventpattern.Scratch
			var got []int
			var err error
			taken := allocated(func() { got, err = x.Match(&s, nil, event) })
			require.NoError(t, err)
			assert.Less(t, taken, uint64(4<<20))
			assert.NotEmpty(t, got)
		})
	}
}

// An index keeps nothing of rules that were taken out again.
func TestChurnKeepsNothing(t *testing.T) {
	x := eventpattern.NewIndex[string]()
	set := func(id, pattern string) {
		p, err := eventpattern.Parse([]byte(pattern))
		require.NoError(t, err)
		x.Set(id, p)
	}
	set("stays", `{"a":["x"]}`)
	before := liveBytes()
	for i := range 50 {
		set("long", fmt.Sprintf(`{"a":["%d%s"],"b":["%d%s"]}`, i, strings.Repeat("y", 100_000), i, strings.Repeat("z", 100_000)))
	}
	for range 10_000 {
		set("twin", `{"a":["x"]}`)
		x.Update(func(c *eventpattern.Change[string]) { c.Remove("twin") })
	}
	x.Update(func(c *eventpattern.Change[string]) { c.Remove("long") })
	assert.Less(t, liveBytes()-before, int64(1<<20))
	runtime.KeepAlive(x)
}

// TestChurnOfALargeRuleKeepsLittle: most rules stay, and the one that is replaced is the largest.
func TestChurnOfALargeRuleKeepsLittle(t *testing.T) {
	x := eventpattern.NewIndex[int]()
	x.Update(func(c *eventpattern.Change[int]) {
		for i := range 2000 {
			c.Set(i, parse(t, fmt.Sprintf(`{"type":["t%d"]}`, i)))
		}
	})
	replace := func(i int) {
		x.Set(-1, parse(t, `{"data":{"shop":[`+listed(10_000, fmt.Sprintf(`"%d-%%d"`, i))+`]}}`))
	}
	replace(0)
	before := liveBytes()
	for i := range 50 {
		replace(i)
	}
	assert.Less(t, liveBytes()-before, int64(16<<20))
	runtime.KeepAlive(x)
}

// TestEarlierChangesAreNotKept: parts of the index that no later change touches come from each
// earlier one.
func TestEarlierChangesAreNotKept(t *testing.T) {
	x := eventpattern.NewIndex[int]()
	before := liveBytes()
	for i := range 2000 {
		x.Set(2*i, parse(t, fmt.Sprintf(`{"customer":["c%d"]}`, i)))
		x.Set(2*i+1, parse(t, fmt.Sprintf(`{"type":[{"prefix":"kind-%d."}]}`, i)))
	}
	assert.Less(t, liveBytes()-before, int64(16<<20))
	runtime.KeepAlive(x)
}

// liveBytes is the size of all live objects.
func liveBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestAnExclusionOfManyWildcardsIsCheap: an ordinary event does not take too much work.
func TestAnExclusionOfManyWildcardsIsCheap(t *testing.T) {
	x := eventpattern.NewIndex[int]()
	x.Set(1, parse(t, `{"data":[{"anything-but":{"wildcard":[`+listed(12_000, `"*0*%d*"`)+`]}}]}`))
	var s eventpattern.Scratch
	ids, err := x.Match(&s, nil, []byte(`{"data":"0123-4567"}`))
	require.NoError(t, err)
	assert.Empty(t, ids, "*0*1*")
	ids, err = x.Match(&s, nil, []byte(`{"data":"abc"}`))
	require.NoError(t, err)
	assert.Equal(t, []int{1}, ids)
}

// The time of a match grows with the event and the rules, and stays bearable where both are
// hostile.
func TestHostileEventsTakeBearableTime(t *testing.T) {
	t.Parallel()
	x := eventpattern.NewIndex[int]()
	x.Update(func(c *eventpattern.Change[int]) {
		for i := range 1000 {
			p, err := eventpattern.Parse([]byte(fmt.Sprintf(`{"a":["x",{"prefix":"y"},{"wildcard":"*z*%d"}],"b":["v"],"c":[{"exists":false},"n%d"]}`, i, i)))
			require.NoError(t, err)
			c.Set(i, p)
		}
	})
	event := []byte(`{"b":"v","a":[` + strings.Repeat(`"x","yz",`, 30_000) + `"x"]}`)
	var s eventpattern.Scratch
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(t)
	got, err := x.Match(&s, nil, event)
	took := threadTime(t) - began
	require.NoError(t, err)
	assert.Len(t, got, 1000)
	t.Log(took)
	assert.Less(t, took, 10*time.Second)
}

func TestWeight(t *testing.T) {
	for pattern, want := range map[string]int{
		`{"a":["x"]}`: 2,
		`{"a":["x",{"anything-but":["y","z"]}],"b":[1]}`:                  2 + 4 + 1,
		`{"a":["x"],"$or":[{"b":[1,2]},{"c":[3]}]}`:                       2 + 3 + 2 + 2,
		`{"$or":[{"a":[1]},{"b":[1]}],"o":{"$or":[{"a":[1]},{"b":[1]}]}}`: 4 * 4,
	} {
		p, err := eventpattern.Parse([]byte(pattern))
		require.NoError(t, err)
		assert.Equal(t, want, p.Weight(), pattern)
	}
}
