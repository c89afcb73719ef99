package eventpattern_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
	"github.com/aviaryhq/aviary/test/corpus"
)

func TestIndex(t *testing.T) {
	x := eventpattern.NewIndex[string]()
	var s eventpattern.Scratch
	matched := func(event string) []string {
		t.Helper()
		ids, err := x.Match(&s, nil, []byte(event))
		require.NoError(t, err)
		return ids
	}
	assert.Empty(t, matched(`{"a":"x"}`), "an index without rules")
	x.Set("one", parse(t, `{"a":["x"]}`))
	x.Set("two", parse(t, `{"a":[{"prefix":"x"}],"$or":[{"b":[1]},{"c":[1]}]}`))
	assert.Equal(t, 2, x.Len())
	assert.Equal(t, []string{"one"}, matched(`{"a":"x"}`))
	assert.ElementsMatch(t, []string{"one", "two"}, matched(`{"a":["x","xx"],"b":1,"c":[1,1.0]}`), "once each")
	x.Set("one", parse(t, `{"b":[{"exists":false}]}`))
	assert.Equal(t, 2, x.Len())
	assert.Equal(t, []string{"one"}, matched(`{"a":"x"}`))
	assert.Empty(t, matched(`{"b":1}`), "the rule before is gone")
	for range 2 { // the second time does nothing
		x.Update(func(c *eventpattern.Change[string]) { c.Remove("one") })
	}
	assert.Equal(t, 1, x.Len())
	assert.Empty(t, matched(`{}`))
}

// TestPanicWithinUpdate: the index is as the changes before the panic left it, and can be used.
func TestPanicWithinUpdate(t *testing.T) {
	x := indexOf(t, `{"a":["x"]}`)
	assert.Panics(t, func() {
		x.Update(func(c *eventpattern.Change[string]) {
			c.Set("two", parse(t, `{"a":["x","y"]}`))
			panic("on purpose")
		})
	})
	x.Set("three", parse(t, `{"a":["x"]}`))
	ids, err := x.Match(&eventpattern.Scratch{}, nil, []byte(`{"a":"x"}`))
	assert.NoError(t, err)
	assert.Len(t, ids, 3)
	assert.Equal(t, 3, x.Len())
}

// TestScratchOfSeveralIndexes: what one index leaves in a Scratch does not show in another.
func TestScratchOfSeveralIndexes(t *testing.T) {
	var s eventpattern.Scratch
	small, large := indexOf(t, `{"b":["x",{"anything-but":"x"}]}`), build(t, corpus.Mixed(500))
	for _, event := range corpus.Mixed(500).Events[:100] {
		ids, err := small.Match(&s, nil, []byte(`{"b":["x","y"]}`))
		assert.NoError(t, err)
		assert.Len(t, ids, 1)
		many, err := large.Match(&s, nil, event)
		assert.NoError(t, err)
		fresh, err := large.Match(&eventpattern.Scratch{}, nil, event)
		assert.NoError(t, err)
		assert.Equal(t, fresh, many)
	}
}

// TestAbsentOrWildcard: a value that a wildcard is looked up for, and that it does not match, is a
// value all the same.
func TestAbsentOrWildcard(t *testing.T) {
	for _, text := range []string{
		`{"a":[{"exists":false},{"wildcard":"x*y"}]}`, `{"a":[{"exists":false},{"wildcard":"x*y"}],"b":[{"exists":false}]}`,
		`{"a":[{"exists":false},{"wildcard":"x*y"}],"c":[1]}`,
	} {
		x := indexOf(t, text, `{"a":{"b":["so that arrays there matter"]}}`)
		ids, err := x.Match(&eventpattern.Scratch{}, nil, []byte(`{"a":["x","z",{"c":1}],"c":1}`))
		assert.NoError(t, err)
		assert.Empty(t, ids)
	}
}

// TestRemoveAll: rules of each kind that go leave nothing that finds them, and rules that come
// after take their numbers.
func TestRemoveAll(t *testing.T) {
	m := maker{rand.New(rand.NewPCG(7, 7))}
	x := eventpattern.NewIndex[int]()
	var s eventpattern.Scratch
	for round := range 5 {
		x.Update(func(c *eventpattern.Change[int]) {
			for i := range 300 {
				c.Set(i, parse(t, m.pattern(3)))
			}
		})
		for _, i := range m.Perm(300) {
			x.Update(func(c *eventpattern.Change[int]) { c.Remove(i) })
		}
		for range 50 {
			ids, err := x.Match(&s, nil, []byte(m.event(3)))
			require.NoError(t, err)
			require.Empty(t, ids, "round %d", round)
		}
	}
}

// TestMatchWhileRulesChange: each match sees the rules of one moment. Two rules take turns in one
// Update each, so an event matches exactly one of them.
func TestMatchWhileRulesChange(t *testing.T) {
	x := eventpattern.NewIndex[string]()
	p := parse(t, `{"a":["x",{"prefix":"y"}],"b":[{"anything-but":"z"}],"n":[{"numeric":["<",5]}]}`)
	x.Set("even", p)
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for range 2 {
		wg.Go(func() {
			var s eventpattern.Scratch
			var ids []string
			for {
				select {
				case <-stop:
					return
				default:
				}
				var err error
				if ids, err = x.Match(&s, ids[:0], []byte(`{"a":"x","b":"y","n":[7,3]}`)); err != nil || len(ids) != 1 {
					t.Errorf("%v %v", ids, err)
					return
				}
			}
		})
	}
	for i := range 2000 {
		from, to := "even", "odd"
		if i%2 == 1 {
			from, to = to, from
		}
		x.Update(func(c *eventpattern.Change[string]) {
			c.Remove(from)
			c.Set(to, p)
			// A rule that comes and goes, so that tables are copied, grow and shrink.
			c.Set("other", parse(t, fmt.Sprintf(`{"a":["o-%d"],"k-%d":["o"]}`, i, i%50)))
		})
	}
	close(stop)
	wg.Wait()
}

func TestMatchDoesNotAllocate(t *testing.T) {
	for _, c := range []corpus.Corpus{corpus.Exact(100), corpus.Mixed(1000), corpus.Weak(100)} {
		x := build(t, c)
		var s eventpattern.Scratch
		var ids []int
		all := func() {
			for _, event := range c.Events[:200] {
				ids, _ = x.Match(&s, ids[:0], event)
			}
		}
		all()
		assert.Zero(t, testing.AllocsPerRun(3, all), c.Name)
	}
	// What the corpora have not: escapes, case, networks, arrays, $or, absence.
	x := indexOf(t, `{"a":[{"equals-ignore-case":"é"},{"suffix":{"equals-ignore-case":"Z"}}]}`, `{"a":[{"cidr":"10.0.0.0/8"}],"b":{"c":[1],"d":[{"exists":false}]}}`,
		`{"$or":[{"a":[{"anything-but":{"wildcard":"*x*"}}]},{"b":{"d":[{"prefix":{"equals-ignore-case":"k"}}]}}]}`)
	event := []byte(`{"\u0061":["\u00c9","10.1.1.1","not an address","::1"],"b":[{"c":1.0},{"c":2,"d":"\u212a"}]}`)
	var s eventpattern.Scratch
	var ids []string
	assert.Zero(t, testing.AllocsPerRun(100, func() { ids, _ = x.Match(&s, ids[:0], event) }))
	assert.Len(t, ids, 3)
}

func TestExplain(t *testing.T) {
	p := parse(t, `{"a":{"b":["x"],"c":[{"exists":false}]},"$or":[{"d":[1],"e":[1]},{"f":[1]}]}`)
	for event, want := range map[string]eventpattern.Explanation{
		`{"a":{"b":"x"},"f":1}`:                {Match: true},
		`{}`:                                   {Failed: []eventpattern.Failure{{Pointer: "/a/b", Cause: eventpattern.Missing}, {Pointer: "/$or/1/f", Cause: eventpattern.Missing}}},
		`{"a":{"b":"y","c":null},"d":1,"e":1}`: {Failed: []eventpattern.Failure{{Pointer: "/a/b", Cause: eventpattern.Different}, {Pointer: "/a/c", Cause: eventpattern.Present}}},
		`{"a":[{"b":"x","c":1},{"b":"y"}],"f":1.0}`: {Failed: []eventpattern.Failure{{Pointer: "/a/c", Cause: eventpattern.Present}}},
	} {
		got, err := p.Explain([]byte(event))
		assert.NoError(t, err, event)
		assert.Equal(t, want, got, event)
	}
	got, err := parse(t, `{"a":{"b":["x"],"c":["x"]},"d":["x"]}`).Explain([]byte(`{"a":[{"b":"x"},{"c":"x"}],"d":"x"}`))
	assert.NoError(t, err)
	assert.Equal(t, []eventpattern.Failure{{Pointer: "/a/b", Cause: eventpattern.Elsewhere}, {Pointer: "/a/c", Cause: eventpattern.Elsewhere}}, got.Failed)
	_, err = p.Explain([]byte(`{`))
	assert.EqualError(t, err, "invalid event: offset 1: ends too early")
}
