package eventpattern_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/aviaryhq/aviary/pkg/eventpattern"
)

func TestInvalidPatterns(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 65) + `["x"]` + strings.Repeat("}", 65)
	branches := `{"b":["x"]},{"c":["x"]},{"d":["x"]},{"e":["x"]}`
	or := strings.TrimSuffix(strings.Repeat(`{"$or":[`+branches+`],"z":`, 6), `,"z":`) + strings.Repeat("}", 6)
	for _, c := range []struct {
		pattern string
		offset  int
		pointer string
		reason  string // that begins with this
	}{
		{``, 0, ``, `the pattern is not JSON: unexpected end`},
		{`[]`, 0, ``, `a pattern is a JSON object`},
		{`"x"`, 0, ``, `a pattern is a JSON object`},
		{`{}`, 0, ``, `an empty object matches nothing: name a field; {"type": [{"exists": true}]} is for every event`},
		{`{"a":{}}`, 5, `/a`, `an empty object`},
		{`{"a":[]}`, 5, `/a`, `an empty list`},
		{`{"a":"x"}`, 5, `/a`, `a field's value`},
		{`{"a":1}`, 5, `/a`, `a field's value`},
		{`{"a":[["x"]]}`, 6, `/a/0`, `an alternative is`},
		{`{"a":["x"],"a":["y"]}`, 11, `/a`, `duplicate key "a"`},
		{`{"a":["x"],"\u0061":["y"]}`, 11, `/a`, `duplicate key "a"`},
		{`{"b":{"a":[{"prefix":"x","prefix":"y"}]}}`, 25, `/b/a/0/prefix`, `duplicate key "prefix"`},
		{`{"a":[{"prefix":"x","suffix":"y"}]}`, 20, `/a/0/suffix`, `an object has one operator`},
		{`{"a":[{}]}`, 6, `/a/0`, `the object needs an operator`},
		{`{"a/b":[{"regex":"x"}]}`, 9, `/a~1b/0/regex`, `unknown operator "regex"`},
		{`{"a":[{"prefix":1}]}`, 16, `/a/0/prefix`, `prefix takes a string`},
		{`{"a":[{"prefix":["x"]}]}`, 16, `/a/0/prefix`, `prefix takes a string`},
		{`{"a":[{"suffix":{"wildcard":"x"}}]}`, 17, `/a/0/suffix/wildcard`, `suffix takes a string, or`},
		{`{"a":[{"suffix":{}}]}`, 16, `/a/0/suffix`, `suffix takes a string, or`},
		{`{"a":[{"suffix":{"equals-ignore-case":1}}]}`, 38, `/a/0/suffix/equals-ignore-case`, `equals-ignore-case takes a string`},
		{`{"a":[{"equals-ignore-case":["x"]}]}`, 28, `/a/0/equals-ignore-case`, `equals-ignore-case takes a string`},
		{`{"a":[{"wildcard":"a**b"}]}`, 18, `/a/0/wildcard`, `a wildcard has no consecutive *`},
		{`{"a":[{"wildcard":"a\\b"}]}`, 18, `/a/0/wildcard`, `in a wildcard, a backslash`},
		{`{"a":[{"wildcard":"a\\"}]}`, 18, `/a/0/wildcard`, `in a wildcard, a backslash`},
		{`{"a":[{"wildcard":"` + strings.Repeat("a*", 33) + `"}]}`, 18, `/a/0/wildcard`, `a wildcard this complex`},
		{`{"a":[{"anything-but":[]}]}`, 22, `/a/0/anything-but`, `the list of anything-but is empty`},
		{`{"a":[{"anything-but":["x",1]}]}`, 27, `/a/0/anything-but/1`, `the list of anything-but holds strings or numbers`},
		{`{"a":[{"anything-but":null}]}`, 22, `/a/0/anything-but`, `anything-but takes strings and numbers`},
		{`{"a":[{"anything-but":[true]}]}`, 23, `/a/0/anything-but/0`, `anything-but takes strings and numbers`},
		{`{"a":[{"anything-but":[["x"]]}]}`, 23, `/a/0/anything-but/0`, `anything-but takes a string`},
		{`{"a":[{"anything-but":{}}]}`, 22, `/a/0/anything-but`, `the object of anything-but needs`},
		{`{"a":[{"anything-but":{"numeric":["=",1]}}]}`, 23, `/a/0/anything-but/numeric`, `anything-but knows no operator "numeric"`},
		{`{"a":[{"anything-but":{"prefix":""}}]}`, 32, `/a/0/anything-but/prefix`, `every string has an empty prefix`},
		{`{"a":[{"anything-but":{"suffix":[]}}]}`, 32, `/a/0/anything-but/suffix`, `the list of suffix is empty`},
		{`{"a":[{"anything-but":{"wildcard":"**"}}]}`, 34, `/a/0/anything-but/wildcard`, `a wildcard has no consecutive *`},
		{`{"a":[{"anything-but":{"prefix":"x","suffix":"y"}}]}`, 36, `/a/0/anything-but/suffix`, `the object of anything-but has one operator`},
		{`{"a":[{"numeric":5}]}`, 17, `/a/0/numeric`, `numeric takes a list`},
		{`{"a":[{"numeric":[]}]}`, 17, `/a/0/numeric`, `the list of numeric is empty`},
		{`{"a":[{"numeric":[">"]}]}`, 17, `/a/0/numeric`, `> needs a number`},
		{`{"a":[{"numeric":[">","5"]}]}`, 22, `/a/0/numeric/1`, `> needs a number`},
		{`{"a":[{"numeric":[5]}]}`, 18, `/a/0/numeric/0`, `numeric takes comparisons and numbers`},
		{`{"a":[{"numeric":["!=",5]}]}`, 18, `/a/0/numeric/0`, `unknown comparison "!="`},
		{`{"a":[{"numeric":["<",5,">",1]}]}`, 24, `/a/0/numeric/2`, `numeric takes one comparison, or`},
		{`{"a":[{"numeric":["=",5,"<",7]}]}`, 24, `/a/0/numeric/2`, `numeric takes one comparison, or`},
		{`{"a":[{"numeric":[">",1,"<",7,"<",9]}]}`, 30, `/a/0/numeric/4`, `numeric takes one comparison, or`},
		{`{"a":[{"numeric":[">",5,"<",5.0]}]}`, 28, `/a/0/numeric/3`, `the lower bound is not less`},
		{`{"a":[{"cidr":"10.0.0.1"}]}`, 14, `/a/0/cidr`, `a network is an IPv4 address with a length up to 32`},
		{`{"a":[{"cidr":"10.0.0/8"}]}`, 14, `/a/0/cidr`, `a network is an IPv4 address with a length up to 32`},
		{`{"a":[{"cidr":"10.0.0.0/33"}]}`, 14, `/a/0/cidr`, `a network is an IPv4 address with a length up to 32`},
		{`{"a":[{"cidr":"::/129"}]}`, 14, `/a/0/cidr`, `a network is an IPv4 address with a length up to 32`},
		{`{"a":[{"cidr":"fe80::1%eth0/64"}]}`, 14, `/a/0/cidr`, `a network is an IPv4 address with a length up to 32`},
		{`{"a":[{"exists":{}}]}`, 16, `/a/0/exists`, `exists takes true or false`},
		{`{"a":[{"exists":"yes"}]}`, 16, `/a/0/exists`, `exists takes true or false`},
		{`{"$or":{"a":["x"]}}`, 7, `/$or`, `$or is a list of objects`},
		{`{"$or":[]}`, 7, `/$or`, `$or has two branches`},
		{`{"$or":[{"a":["x"]}]}`, 7, `/$or`, `$or has two branches`},
		{`{"$or":[{"a":["x"]},"x"]}`, 20, `/$or/1`, `$or is a list of objects`},
		{`{"$or":[{"numeric":[5]},{"a":["x"]}]}`, 9, `/$or/0/numeric`, `"numeric" is an operator`},
		{or, 57, `/z`, `$or makes too many combinations`},
		{deep, 320, strings.Repeat("/a", 64), `objects are nested too deep`},
		{`{"a":["x"]`, 9, ``, `the pattern is not JSON: unexpected end`},
		{`{"a":["x"}`, 9, ``, `the pattern is not JSON: invalid character '}' after array element`},
		{`{"a":["x"]}{`, 11, ``, `the pattern is not JSON: invalid character '{' after top-level value`},
		{`{a:["x"]}`, 1, ``, `the pattern is not JSON: invalid character 'a'`},
		{`{"a"["x"]}`, 4, ``, `the pattern is not JSON: invalid character '[' after object key`},
		{`{"a":[tru]}`, 9, ``, `the pattern is not JSON: invalid character ']' in literal true`},
		{`{"a":[01]}`, 7, ``, `the pattern is not JSON: invalid character '1'`},
		{`{"a":[1.]}`, 8, ``, `the pattern is not JSON: invalid character ']' after decimal point`},
		{`{"a":[1e999999999999999999]}`, 6, `/a/0`, `the number's exponent is too long`},
		{"{\"a\":[\"\xff\"]}", 7, `/a/0`, `the string is not UTF-8`},
		{"{\"a\":[\"\n\"]}", 7, ``, `the pattern is not JSON: invalid character '\n' in string literal`},
		{`{"a":["\q"]}`, 8, ``, `the pattern is not JSON: invalid character 'q' in string escape`},
		{`{"a":["\ud800"]}`, 7, `/a/0`, `the string has half a surrogate pair`},
		{`{"a":["x`, 7, ``, `the pattern is not JSON: unexpected end`},
		{`{"a":["` + strings.Repeat("x", eventpattern.MaxPatternBytes) + `"]}`, eventpattern.MaxPatternBytes, ``, `the pattern is too long`},
	} {
		name := c.pattern[:min(len(c.pattern), 60)]
		p, err := eventpattern.Parse([]byte(c.pattern))
		var wrong *eventpattern.Error
		if !assert.ErrorAs(t, err, &wrong, name) {
			continue
		}
		assert.Nil(t, p, name)
		assert.Equal(t, c.pointer, wrong.Pointer, name)
		assert.Equal(t, c.offset, wrong.Offset, "%s: %v", name, err)
		assert.True(t, strings.HasPrefix(wrong.Reason, c.reason), "%s: %s", name, wrong.Reason)
		assert.Contains(t, err.Error(), wrong.Reason)
	}
}

// FuzzParse looks for patterns that panic.
func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"a":[{"anything-but":{"prefix":["x","y"]}}],"$or":[{"b":[{"numeric":[">",1,"<=",2]}]},{"c":[{"cidr":"10.0.0.0/8"}]}]}`))
	f.Add([]byte(`{"a":[{"exists":{}},{"exists":[]},{"numeric":[{}]},{"anything-but":[[]]}]}`))
	f.Add([]byte(`{"a":[{"wildcard":"a*\\*\\\\b"},{"exists":false},null,-0.0e1]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := eventpattern.Parse(text); err != nil {
			var wrong *eventpattern.Error
			if !errors.As(err, &wrong) || wrong.Offset < 0 || wrong.Offset > len(text) || wrong.Reason == "" {
				t.Fatalf("%#v", err)
			}
		}
	})
}

// FuzzMatch compares any pattern on any event with the naive evaluator.
func FuzzMatch(f *testing.F) {
	f.Add([]byte(`{"a":[{"prefix":"x"}]}`), []byte(`{"a":["xy",{"b":1}]}`))
	f.Add([]byte(`{"a":{"b":[{"numeric":["<",1e3]}],"c":[{"exists":false}]}}`), []byte(`{"a":[{"b":-1.5e-3},{"b":2,"c":null}]}`))
	f.Add([]byte(`{"a":[{"cidr":"10.0.0.0/8"}]}`), []byte(`{"\u0061":"10.1.2.3","b":[[],{}]}`))
	f.Fuzz(func(t *testing.T, pattern, event []byte) {
		p, err := eventpattern.Parse(pattern)
		if err != nil || len(pattern) > 2000 || len(event) > 2000 || huge(pattern) || huge(event) {
			return
		}
		e, err := p.Explain(event)
		if err != nil {
			checkEventError(t, event, err)
			return
		}
		if want, err := naive(pattern, event); err != nil || e.Match != want {
			t.Fatalf("%s\n%s\n%v, want %v %v", pattern, event, e, want, err)
		}
	})
}

// huge is for exponents that the naive evaluator would write out.
func huge(text []byte) bool {
	digits, exponent := 0, false
	for _, c := range text {
		switch {
		case c|0x20 == 'e':
			exponent, digits = true, 0
		case '0' <= c && c <= '9':
			if digits++; exponent && digits > 3 {
				return true
			}
		case c != '+' && c != '-':
			exponent, digits = false, 0
		}
	}
	return false
}

func checkEventError(t *testing.T, event []byte, err error) {
	t.Helper()
	var wrong *eventpattern.EventError
	if !errors.As(err, &wrong) || wrong.Offset < 0 || wrong.Offset > len(event) || !strings.Contains(fmt.Sprint(err), string(wrong.Reason)) {
		t.Fatalf("%#v", err)
	}
}
