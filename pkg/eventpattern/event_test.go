package eventpattern_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// indexOf is an index of patterns, which are their own IDs.
func indexOf(t testing.TB, patterns ...string) *eventpattern.Index[string] {
	t.Helper()
	x := eventpattern.NewIndex[string]()
	for _, text := range patterns {
		x.Set(text, parse(t, text))
	}
	return x
}

func TestInvalidEvents(t *testing.T) {
	x := indexOf(t, `{"a":{"b":["x"]},"n":[1],"t":["x"]}`)
	nested := func(n int, open, inner, shut string) string {
		return strings.Repeat(open, n) + inner + strings.Repeat(shut, n)
	}
	for _, c := range []struct {
		event  string
		offset int
		reason eventpattern.Reason
	}{
		{``, 0, eventpattern.Truncated},
		{`  `, 2, eventpattern.Truncated},
		{`[]`, 0, eventpattern.NotAnObject},
		{` "x"`, 1, eventpattern.NotAnObject},
		{`nul`, 3, eventpattern.Truncated},
		{`x`, 0, eventpattern.InvalidJSON},
		{`{`, 1, eventpattern.Truncated},
		{`{"a"`, 4, eventpattern.Truncated},
		{`{"a":`, 5, eventpattern.Truncated},
		{`{"z":`, 5, eventpattern.Truncated},
		{`{"a":{`, 6, eventpattern.Truncated},
		{`{"z":[1,`, 8, eventpattern.Truncated},
		{`{"z":{"y"`, 9, eventpattern.Truncated},
		{`{"z":"x`, 7, eventpattern.Truncated},
		{`{"t":"x`, 7, eventpattern.Truncated},
		{`{"n":-`, 6, eventpattern.Truncated},
		{`{"n":1e`, 7, eventpattern.Truncated},
		{`{} {}`, 3, eventpattern.InvalidJSON},
		{`{"z":1,}`, 7, eventpattern.InvalidJSON},
		{`{"z":[1,]}`, 8, eventpattern.InvalidJSON},
		{`{"z":[1}`, 7, eventpattern.InvalidJSON},
		{`{"z":{"y":1]}`, 11, eventpattern.InvalidJSON},
		{`{"z":{"y" 1}}`, 10, eventpattern.InvalidJSON},
		{`{"z":{1:1}}`, 6, eventpattern.InvalidJSON},
		{`{'a':1}`, 1, eventpattern.InvalidJSON},
		{`{"a":01}`, 6, eventpattern.InvalidJSON},
		{`{"n":01}`, 6, eventpattern.InvalidJSON},
		{`{"n":.5}`, 5, eventpattern.InvalidJSON},
		{`{"n":5.}`, 7, eventpattern.InvalidJSON},
		{`{"n":+5}`, 5, eventpattern.InvalidJSON},
		{`{"n":NaN}`, 5, eventpattern.InvalidJSON},
		{`{"t":trve}`, 7, eventpattern.InvalidJSON},
		{`{"z":"\q"}`, 6, eventpattern.InvalidJSON},
		{`{"z":"\u12g4"}`, 6, eventpattern.InvalidJSON},
		{"{\"z\":\"a\tb\"}", 7, eventpattern.InvalidJSON},
		{"{\"z\":\"abcdefgh\x00\"}", 14, eventpattern.InvalidJSON},
		{"{\"z\":\"\xff\"}", 6, eventpattern.InvalidUTF8},
		{"{\"t\":\"abcdefghijkl\xc3(\"}", 18, eventpattern.InvalidUTF8},
		{"{\"\xed\xa0\x80\":1}", 2, eventpattern.InvalidUTF8},
		{`{"t":"x","t":"y"}`, 9, eventpattern.DuplicateKey},
		{`{"t":"x","\u0074":"y"}`, 9, eventpattern.DuplicateKey},
		{`{"a":[{"b":1},{"b":1,"b":1}]}`, 21, eventpattern.DuplicateKey},
		{`{"n":1e999999999999999999}`, 5, eventpattern.NumberTooLong},
		{`{"z":` + nested(10000, "[", "", "]") + `}`, 5 + 999, eventpattern.TooDeep},
		{`{"z":` + nested(10000, `{"y":`, "1", "}") + `}`, 5 + 999*5, eventpattern.TooDeep},
		{`{"a":` + nested(10000, "[", "", "]") + `}`, 5 + 999, eventpattern.TooDeep},
		{`{"t":[` + strings.Repeat("1,", eventpattern.MaxEventValues) + `1]}`, 6 + 2*(eventpattern.MaxEventValues-1), eventpattern.TooManyValues},
		{`{"z":"` + strings.Repeat("x", eventpattern.MaxEventBytes) + `"}`, eventpattern.MaxEventBytes, eventpattern.TooLarge},
	} {
		name := c.event[:min(len(c.event), 60)]
		var s eventpattern.Scratch
		ids, err := x.Match(&s, []string{"before"}, []byte(c.event))
		var wrong *eventpattern.EventError
		if assert.ErrorAs(t, err, &wrong, name) {
			assert.Equal(t, eventpattern.EventError{Offset: c.offset, Reason: c.reason}, *wrong, name)
		}
		assert.Equal(t, []string{"before"}, ids, name)
		ids, err = x.Match(&s, nil, []byte(`{"a":[{"b":"x"}],"n":1.0,"t":"x"}`))
		assert.NoError(t, err, name)
		assert.Len(t, ids, 1, "after %s", name)
	}
}

func TestUnusualEvents(t *testing.T) {
	t.Parallel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	x := indexOf(t, `{"t":["x"]}`)
	large := strings.Repeat("x", 10<<20)
	for name, event := range map[string]string{
		"deep":                         `{"z":` + strings.Repeat("[", 999) + strings.Repeat("]", 999) + `,"t":"x"}`,
		"deep where a rule looks":      `{"t":` + strings.Repeat("[", 999) + `"x"` + strings.Repeat("]", 999) + `}`,
		"large, skipped":               `{"z":"` + large + `","t":"x"}`,
		"large, kept":                  `{"t":["` + large + `","x"]}`,
		"many values, skipped":         `{"z":[` + strings.Repeat("1,", 5<<20) + `1],"t":"x"}`,
		"duplicate key no rule names":  `{"z":1,"z":2,"t":"x"}`,
		"duplicate key of elements":    `{"t":"x","z":[{"t":1,"t":2}]}`,
		"half a surrogate pair":        `{"z":"\ud800","t":["\udc00","x"]}`,
		"white space":                  " {\r\n\t\"t\" : [ \"x\" , 1 ] , \"z\" : { } } ",
		"number beyond double, unused": `{"z":1e999999999999999999999,"t":"x"}`,
	} {
		began := threadTime(t)
		var s eventpattern.Scratch
		ids, err := x.Match(&s, nil, []byte(event))
		assert.Less(t, threadTime(t)-began, 5*time.Second, name)
		assert.NoError(t, err, name)
		assert.Len(t, ids, 1, name)
	}
	ids, err := indexOf(t, `{"t":["�"]}`).Match(&eventpattern.Scratch{}, nil, []byte(`{"t":"\ud800"}`))
	assert.NoError(t, err)
	assert.Len(t, ids, 1, "half a surrogate pair is U+FFFD")
}

// TestTimeOfManyCandidates: rules that all have to be checked against many values.
func TestTimeOfManyCandidates(t *testing.T) {
	x := eventpattern.NewIndex[int]()
	x.Update(func(c *eventpattern.Change[int]) {
		for i := range 200 {
			c.Set(i, parse(t, `{"k":["v"],"a":{"b":[{"wildcard":"*x*`+strings.Repeat("y", i)+`"}],"c":[{"exists":false}]}}`))
		}
	})
	event := `{"k":"v","a":[` + strings.Repeat(`{"b":"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"},`, 20000) + `{"b":"xy","c":1}]}`
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	began := threadTime(t)
	ids, err := x.Match(&eventpattern.Scratch{}, nil, []byte(event))
	assert.Less(t, threadTime(t)-began, 20*time.Second)
	require.NoError(t, err)
	assert.Empty(t, ids)
}

// TestLongLists: alternatives that are searched are found as those that are compared one by one.
func TestLongLists(t *testing.T) {
	for _, test := range []struct {
		list    string
		yes, no []string
	}{
		{
			listed(40, `"%d"`) + `,{"prefix":"p"},` + listed(40, `%d`) + `,null,true,"",{"exists":false}`,
			[]string{`"0"`, `"7"`, `"39"`, `0`, `7`, `7.0`, `39`, `""`, `null`, `true`, `"pq"`, `"p"`, `["q",0.7e1]`, `[]`},
			[]string{`"40"`, `40`, `false`, `"q"`, `"null"`, `["q",41,false]`, `"\u0000"`},
		},
		{
			`{"anything-but":[` + listed(3000, `"z%d"`) + `]}`,
			[]string{`"z3000"`, `"z"`, `""`, `7`, `null`, `["z1","z3000"]`}, []string{`"z0"`, `"z2999"`, `["z1","z2"]`, `[]`},
		},
		{`{"anything-but":[` + listed(100, `%d`) + `]}`, []string{`100`, `"7"`, `-1`, `[7,700]`}, []string{`0`, `99`, `99.0`, `[7,8]`}},
	} {
		x := indexOf(t, `{"a":["a"],"b":[`+test.list+`]}`)
		for want, events := range [][]string{test.no, test.yes} {
			for _, event := range events {
				ids, err := x.Match(&eventpattern.Scratch{}, nil, []byte(`{"a":"a","b":`+event+`}`))
				require.NoError(t, err)
				assert.Len(t, ids, want, event)
			}
		}
	}
	// Twelve thousand values against twelve thousand alternatives are not too much.
	ids, err := indexOf(t, `{"a":["a"],"b":[`+listed(12_000, `"%d"`)+`]}`).Match(&eventpattern.Scratch{}, nil, []byte(`{"a":"a","b":["7",`+listed(12_000, `"x%d"`)+`]}`))
	require.NoError(t, err)
	assert.Len(t, ids, 1)
}

// FuzzEvent compares what is accepted with encoding/json.
func FuzzEvent(f *testing.F) {
	f.Add([]byte(`{"a":[1,-2.5e+3,"x\u00e9\ud83d\ude00",true,false,null,{}],"b":{"c":[[]]}}`))
	f.Add([]byte("{\"\xc3\xa9\":\"\\n\"} "))
	patterns := []string{`{"zz":["x"]}`, `{"a":{"b":["x"]},"b":{"c":[{"exists":true}]}}`}
	f.Fuzz(func(t *testing.T, event []byte) {
		valid := json.Valid(event) && utf8.Valid(event) && bytes.HasPrefix(bytes.TrimLeft(event, " \t\r\n"), []byte("{"))
		for _, text := range patterns {
			_, err := indexOf(t, text).Match(&eventpattern.Scratch{}, nil, event)
			var wrong *eventpattern.EventError
			if errors.As(err, &wrong) {
				checkEventError(t, event, err)
				switch wrong.Reason {
				case eventpattern.DuplicateKey, eventpattern.TooDeep, eventpattern.NumberTooLong, eventpattern.TooManyValues:
					continue // JSON, but refused
				}
			}
			if (err == nil) != valid {
				t.Fatalf("%q: %v, valid: %v", event, err, valid)
			}
		}
	})
}
