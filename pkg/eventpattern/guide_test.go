package eventpattern_test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

// TestExamplesOfTheGuide: each pattern in the guide matches the events below it that it should, and
// no others; by the naive evaluator too.
func TestExamplesOfTheGuide(t *testing.T) {
	guide, err := os.ReadFile("../../docs/patterns.md")
	require.NoError(t, err)
	pattern, patterns, events := "", 0, 0
	for block := range strings.SplitSeq(string(guide), "\n```") {
		head, body, _ := strings.Cut(block, "\n")
		switch head {
		case "pattern":
			pattern = body
			patterns++
		case "match", "no match":
			e, err := parse(t, pattern).Explain([]byte(body))
			assert.NoError(t, err, body)
			assert.Equal(t, head == "match", e.Match, "%s\n%s", pattern, body)
			slow, err := naive([]byte(pattern), []byte(body))
			assert.NoError(t, err, body)
			assert.Equal(t, head == "match", slow, "%s\n%s", pattern, body)
			events++
		}
	}
	assert.Greater(t, patterns, 10)
	assert.Greater(t, events, 2*patterns)
}

// TestDifferencesFromAmazonEventBridge checks each row of the guide's table. A pattern without an
// event is one that must be refused.
func TestDifferencesFromAmazonEventBridge(t *testing.T) {
	type check struct {
		pattern, event string
		match          bool
	}
	nested := func(n int) string { return `{"a":[1],"$or":[` + listed(n, `{"b":[%d]}`) + `]}` }
	rows := map[string][]check{
		"shape of events": {{`{"type":["order"],"data":{"x":[1]}}`, `{"specversion":"1.0","id":"1","source":"/s","type":"order","data":{"x":1}}`, true}},
		"length of a pattern": {
			{`{"a":["` + strings.Repeat("x", eventpattern.MaxPatternBytes-10) + `"]}`, `{}`, false},
			{pattern: `{"a":["` + strings.Repeat("x", eventpattern.MaxPatternBytes) + `"]}`},
		},
		"combinations of `$or`": {{nested(1024), `{"a":1,"b":1023}`, true}, {pattern: nested(1025)}},
		"`$or` with a mistake":  {{pattern: `{"$or":{"a":[1]}}`}, {pattern: `{"$or":[{"a":[1]}]}`}, {pattern: `{"$or":[{"prefix":["x"]},{"a":[1]}]}`}},
		"`$or` with the same field": {
			{`{"a":[1,2],"$or":[{"a":[2,3]},{"b":[1]}]}`, `{"a":2}`, true}, {`{"a":[1,2],"$or":[{"a":[2,3]},{"b":[1]}]}`, `{"a":1}`, false},
			{`{"a":[1,2],"$or":[{"a":[2,3]},{"b":[1]}]}`, `{"a":3}`, false},
		},
		"equal numbers": {{`{"a":[300]}`, `{"a":300.0}`, true}, {`{"a":[300]}`, `{"a":3.0e2}`, true}},
		"range of numbers": {
			{`{"a":[{"numeric":[">",1e300]}]}`, `{"a":1e301}`, true}, {`{"a":[9007199254740993]}`, `{"a":9007199254740992}`, false},
			{`{"a":[{"numeric":[">",0.00000001]}]}`, `{"a":0.00000002}`, true}, {pattern: `{"a":[1e123456789012345678]}`},
		},
		"dots in keys": {{`{"a.b":[1]}`, `{"a.b":1}`, true}, {`{"a.b":[1]}`, `{"a":{"b":1}}`, false}},
		"`exists: false` in lists": {
			{`{"l":{"a":[1],"b":[{"exists":false}]}}`, `{"l":[{"a":1},{"b":1}]}`, true}, {`{"l":{"b":[1],"a":[{"exists":false}]}}`, `{"l":[{"b":1},{"a":1}]}`, true},
			{`{"l":{"a":[1],"b":[{"exists":false}]}}`, `{"l":[{"a":1,"b":1},{}]}`, false},
		},
		"duplicate keys in a pattern": {{pattern: `{"a":[1],"a":[2]}`}},
		"duplicate keys in an event":  {{`{"a":[1]}`, `{"a":1,"a":1}`, false}},
		"anything-but of an affix without regard to case": {
			{`{"a":[{"anything-but":{"prefix":{"equals-ignore-case":"x"}}}]}`, `{"a":"XY"}`, false},
			{`{"a":[{"anything-but":{"suffix":["z",{"equals-ignore-case":"x"}]}}]}`, `{"a":"yX"}`, false},
			{`{"a":[{"anything-but":{"suffix":["z",{"equals-ignore-case":"x"}]}}]}`, `{"a":"Z"}`, true},
		},
		"wildcards": {
			{`{"a":[{"wildcard":"` + strings.Repeat("*a", 32) + `"}]}`, `{"a":"` + strings.Repeat("ba", 32) + `"}`, true},
			{pattern: `{"a":[{"wildcard":"` + strings.Repeat("*a", 33) + `"}]}`}, {pattern: `{"a":[{"wildcard":"a**"}]}`},
		},
		"case": {{`{"a":[{"equals-ignore-case":"k"}]}`, `{"a":"\u212a"}`, true}, {`{"a":[{"equals-ignore-case":"strasse"}]}`, `{"a":"straße"}`, false}},
		"IPv4 addresses in IPv6 notation": {
			{`{"a":[{"cidr":"10.0.0.0/8"}]}`, `{"a":"::ffff:10.1.2.3"}`, true}, {`{"a":[{"cidr":"::/0"}]}`, `{"a":"10.1.2.3"}`, false},
			{`{"a":[{"cidr":"::ffff:10.0.0.0/104"}]}`, `{"a":"10.1.2.3"}`, true}, {`{"a":[{"cidr":"::ffff:0:0/90"}]}`, `{"a":"10.1.2.3"}`, false},
			{`{"a":[{"cidr":"2001:db8::/32"}]}`, `{"a":"2001:db8:ffff::1"}`, true}, {`{"a":[{"cidr":"2001:db8::/32"}]}`, `{"a":"2001:db9::"}`, false},
		},
	}
	for subject, checks := range rows {
		for _, c := range checks {
			name := subject + ": " + c.pattern[:min(len(c.pattern), 90)]
			p, err := eventpattern.Parse([]byte(c.pattern))
			if c.event == "" {
				assert.Error(t, err, name)
				continue
			}
			require.NoError(t, err, name)
			e, err := p.Explain([]byte(c.event))
			assert.Equal(t, subject == "duplicate keys in an event", err != nil, name)
			assert.Equal(t, c.match, e.Match, name)
		}
	}
	same := map[string]string{`{"a":[null]}`: `{"a":null}`, `{"a":[""]}`: `{"a":""}`, `{"a":[{"exists":true}],"b":[{"exists":false}]}`: `{"a":["",null],"b":{"c":1}}`}
	for pattern, event := range same {
		e, err := parse(t, pattern).Explain([]byte(event))
		require.NoError(t, err)
		assert.True(t, e.Match, pattern)
	}
	guide, err := os.ReadFile("../../docs/patterns.md")
	require.NoError(t, err)
	_, table, _ := strings.Cut(string(guide), "| subject | Amazon EventBridge | here |\n|---|---|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	var documented []string
	for row := range strings.SplitSeq(table, "\n") {
		documented = append(documented, strings.TrimSpace(strings.Split(row, "|")[1]))
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(rows)), documented)
}
