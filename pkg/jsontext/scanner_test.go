package jsontext_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

// TestStrict: what a strict scanner refuses in addition.
func TestStrict(t *testing.T) {
	for text, want := range map[string]jsontext.Fault{
		`{"a":"\ud83d\ude00"}`: "",
		`{"a":"\ud800"}`:       jsontext.HalfSurrogate,
		`{"\udc00\ud800":1}`:   jsontext.HalfSurrogate,
		`[1,2,3]`:              "",
		`[1,2,3,4]`:            jsontext.TooManyValues,
		`1e999`:                "",
		`1e1000`:               jsontext.ExponentTooLong,
	} {
		lenient := jsontext.Scanner{Src: []byte(text), MaxDepth: 2}
		require.Equal(t, len(text), lenient.Value(0), text)
		strict := lenient
		strict.Reset([]byte(text))
		strict.Strict, strict.MaxValues, strict.MaxExponentDigits = true, 4, 3
		strict.Value(0)
		require.Equal(t, want, strict.Fault, text)
	}
	const text = `{"a":{"b":1,"\u0062":2},"a":3}`
	s := jsontext.Scanner{Src: []byte(text), MaxDepth: 2, Strict: true, MaxValues: 9}
	require.Equal(t, len(text), s.Value(0), "the scanner goes on")
	require.Equal(t, 12, s.Duplicate, "the first that was found")
	s = jsontext.Scanner{Src: []byte(`[[[]]]`), MaxDepth: 2}
	require.Equal(t, -1, s.Value(0))
	require.Equal(t, jsontext.TooDeep, s.Fault)
	require.Equal(t, 2, s.At)
}
