package jsontext_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/aviaryhq/aviary/pkg/jsontext"
)

func TestEscapesAreThoseOfJSON(t *testing.T) {
	for c := range byte(0x80) {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		escape := jsontext.AppendEscape(nil, c)
		var text string
		require.NoError(t, json.Unmarshal([]byte(`"`+string(escape)+`"`), &text), "%q", c)
		require.Equal(t, string(rune(c)), text)
		if unit, ok := jsontext.CodeUnit(escape); ok {
			require.Equal(t, rune(c), unit)
		} else {
			require.Equal(t, c, jsontext.Unescape(escape[1]))
		}
	}
	require.Equal(t, byte('/'), jsontext.Unescape('/'))
}

func TestCodeUnit(t *testing.T) {
	unit, ok := jsontext.CodeUnit([]byte(`\uD83d and more`))
	require.True(t, ok)
	require.Equal(t, rune(0xd83d), unit)
	for _, text := range []string{"", `\u`, `\u12`, `\u12g4`, `\x1234`, `u12345`, `\u+123`} {
		_, ok := jsontext.CodeUnit([]byte(text))
		require.False(t, ok, text)
	}
}
